"""A checkpoint to a Hugging Face folder that transformers, vLLM and others read."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megapack.errors import ConfigError, StoreError
from megapack.jobs.export_weights import ExportWeightsJob
from megapack.jobs.model import ModelJob, TrainPrecision
from megapack.jobs.train import TrainJob
from megapack.records.refs import FolderRef
from megapack.steps.hugging_face.config import model_of_config
from megapack.steps.hugging_face.folder import CONFIG, open_folder
from megapack.steps.hugging_face.resolve import check_model
from megapack.steps.launch.local import run_ranks
from megapack.steps.launch.protocol import Launcher, OnLine
from megapack.steps.launch.worker_run import run_worker
from megapack.store.manifest import Manifest
from megapack.store.schema import PackedInfo
from megapack.store.versions import read_version

_FAMILIES = {
    (False, False): ("llama", "LlamaForCausalLM"),
    (True, False): ("qwen2", "Qwen2ForCausalLM"),
    (False, True): ("qwen3", "Qwen3ForCausalLM"),
}
"""Model type and class by (qkv_bias, qk_layernorm)."""
_DTYPES = {TrainPrecision.FP32: "float32", TrainPrecision.BF16: "bfloat16"}
_BESIDE = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def export_weights(
    checkpoint: str,
    output: Path,
    *,
    version: int | None = None,
    like: Path | None = None,
    on_line: OnLine,
    launcher: Launcher = run_ranks,
) -> FolderRef:
    """Write a checkpoint's weights out. One process holds the whole model in host memory.

    Args:
        checkpoint: folder or prefix of a training run's checkpoints.
        output: local folder to make; nothing may stand there.
        version: which checkpoint, the newest one when None.
        like: Hugging Face folder of the same shape, usually the one that training started from:
            the rest of its config.json, its tokenizer and generation files are taken over.
        on_line: takes log lines, (rank, line).
        launcher: starts the process.

    Returns:
        The folder, by content.

    Raises:
        ConfigError: no such checkpoint, no Hugging Face model has its shape, `like` has another,
            or something stands at the output.
        DataError: a file of the checkpoint is damaged.
        StoreError: the store or the disk failed.
        RankError: the process died.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"expected nothing at {output}, found files. Choose another folder.")
    found = read_version(checkpoint, version)
    where = f"{checkpoint} version {found.version}"
    model, row_length = _model_of(found.manifest, where=where)
    config = {} if like is None else _config_like(like, model)
    # A model of which nothing else is known has seen positions within a row.
    config = {"max_position_embeddings": row_length, **config, **config_of_model(model)}
    job = ExportWeightsJob(
        checkpoint=found.checkpoint_ref(), model=model, config=config, output=str(output)
    )
    run_worker(
        "export",
        job,
        num_ranks=1,
        launcher=launcher,
        scratch=None,
        on_line=on_line,
        on_metric=lambda _: None,
    )
    if like is not None:
        _copy_beside(like, output)
    return FolderRef(uri=str(output), digest=open_folder(str(output)).digest())


def config_of_model(model: ModelJob) -> dict[str, object]:
    """The fields of config.json that a ModelJob says. `model_of_config` reads the same job back.

    Raises:
        ConfigError: the model has experts or multi-token prediction layers, or biases on q, k, v
            as well as norms on q and k, which no Hugging Face class has.
    """
    found = [] if model.moe is None else [f"moe.num_experts = {model.moe.num_experts}"]
    if model.mtp_num_layers:
        found.append(f"mtp_num_layers = {model.mtp_num_layers}")
    if found:
        raise ConfigError(
            "ModelJob: expected a dense model without multi-token prediction layers, found "
            f"{' and '.join(found)}. Such weights stay in checkpoints."
        )
    family = _FAMILIES.get((model.qkv_bias, model.qk_layernorm))
    if family is None:
        raise ConfigError(
            "ModelJob.qkv_bias with qk_layernorm: expected one of them at most, found both: no "
            "Hugging Face class that megapack writes has them. Such weights stay in checkpoints."
        )
    rotary: dict[str, object] = {"rope_type": "default", "rope_theta": float(model.rotary_base)}
    if model.rope_scaling is not None:
        told = model.rope_scaling.model_dump()
        original = told.pop("original_max_position")
        rotary |= {"rope_type": "llama3", "original_max_position_embeddings": original, **told}
    return {
        "model_type": family[0],
        "architectures": [family[1]],
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_query_groups,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "rms_norm_eps": model.norm_epsilon,
        "tie_word_embeddings": model.tie_embeddings,
        "initializer_range": model.init_std,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_parameters": rotary,
        "dtype": _DTYPES[model.precision],
    }


def _model_of(manifest: Manifest, *, where: str) -> tuple[ModelJob, int]:
    """Shape of a checkpoint's model, its vocabulary filled in, and the length of its rows."""
    if manifest.kind != "checkpoint":
        raise ConfigError(f"{where}: expected a checkpoint, found kind {manifest.kind!r}.")
    job = TrainJob.model_validate(manifest.settings["job"])
    packed = PackedInfo.model_validate(manifest.settings["packed"])
    vocabulary = job.settings.model.vocabulary(packed.vocab_size)
    return job.settings.model.model_copy(update={"vocab_size": vocabulary}), packed.row_length


def _config_like(like: Path, model: ModelJob) -> Mapping[str, Any]:
    """config.json of a folder of the same shape, without what other versions call otherwise."""
    folder = open_folder(str(like))
    check_model(model, folder)
    config: dict[str, Any] = json.loads((folder.path / CONFIG).read_bytes())
    model_of_config(config, where=str(folder.path / CONFIG))
    replaced = ("torch_dtype", "rope_theta", "rope_scaling", "architectures", "model_type")
    return {name: value for name, value in config.items() if name not in replaced}


def _copy_beside(like: Path, output: Path) -> None:
    try:
        for name in _BESIDE:
            if (like / name).is_file():
                shutil.copyfile(like / name, output / name)
    except OSError as error:
        raise StoreError(f"could not copy from {like} to {output}: {error}.") from error
