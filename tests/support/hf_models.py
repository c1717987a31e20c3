"""Tiny random Hugging Face models, and what transformers makes of documents with them.

Imports torch and transformers: only functions that run on ranks may import this module.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from megapack.layout.granularity import ParallelSizes
from megapack.model.build import build_model
from megapack.model.hf_export import write_weights
from megapack.model.hf_weights import read_weights
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from megapack.steps.hugging_face.export import config_of_model
from megapack.steps.hugging_face.folder import open_folder
from tests.support.hf_folder import HfOutcome
from tests.support.rows import one_document

VOCAB = 107
"""Beyond that of the rows, and no multiple of anything."""
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 64,
}


def configurations() -> dict[str, Any]:
    """Each has something that the others lack."""
    return {
        "llama": LlamaConfig(**_SHAPE, tie_word_embeddings=True, rope_parameters=_LLAMA3),
        "qwen2": Qwen2Config(**_SHAPE),
        "qwen3": Qwen3Config(**_SHAPE, head_dim=16, rms_norm_eps=1e-5),
    }


def save_models(folder: Path) -> None:
    """Write one folder a configuration: one file, several files, bfloat16."""
    for seed, (name, config) in enumerate(configurations().items()):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.3 * torch.randn_like(parameter))
        if name == "qwen3":
            model.to(torch.bfloat16)
        limits = {"max_shard_size": "20KB"} if name == "qwen2" else {}
        model.save_pretrained(folder / name, **limits)


def export_again(folder: Path, target: Path, *, file_bytes: int) -> None:
    """Read a folder as our model, and write it out again; run on one rank."""
    found = open_folder(str(folder))
    context = ParallelContext.initialize(ParallelSizes(), seed=7)
    (chunk,) = build_model(
        found.model, context=context, vocab_size=found.model.vocabulary(VOCAB), seed=None
    )
    read_weights(chunk, job=found.model, folder=found, context=context)
    target.mkdir()
    write_weights(chunk, job=found.model, folder=target, file_bytes=file_bytes)
    (target / "config.json").write_text(json.dumps(config_of_model(found.model)))
    context.destroy()


def same_model(folder: Path, other: Path) -> bool:
    """transformers loads both without a complaint, as the same class with the same weights."""
    models = []
    for one in (folder, other):
        model, told = AutoModelForCausalLM.from_pretrained(one, output_loading_info=True)
        assert not any(told.values()), told
        models.append(model)
    first, second = (model.state_dict() for model in models)
    return type(models[0]) is type(models[1]) and all(
        value.dtype == second[name].dtype and torch.equal(value, second[name])
        for name, value in first.items()
    )


def outcome(
    folder: Path, rows: Sequence[PackedRow], dtype: torch.dtype, *, gradients: Path
) -> HfOutcome:
    """What transformers gives for each document, alone and unpacked.

    Args:
        folder: the model.
        rows: their documents are taken one by one.
        dtype: precision of everything.
        gradients: folder to write; of the mean loss, like a model's weights.
    """
    model = load(folder, dtype)
    logits, losses, count = [], [], 0
    for document in documents(rows):
        found = model(torch.tensor(document.tokens[None], dtype=torch.int64)).logits[0]
        counted = np.flatnonzero(document.loss_mask())
        labels = torch.tensor(document.tokens[counted + 1], dtype=torch.int64)
        losses.append(F.cross_entropy(found[counted], labels, reduction="sum"))
        logits.append(found.detach().numpy())
        count += counted.size
    # megatron-core multiplies by a reciprocal that it rounds to float32.
    (sum(losses) * float(np.float32(1.0) / np.float32(count))).backward()
    gradients.mkdir()
    shutil.copy(folder / "config.json", gradients)
    of_names = {name: one.grad.contiguous() for name, one in model.named_parameters()}
    save_file(of_names, gradients / "model.safetensors")
    return HfOutcome(logits=logits, loss_sum=sum(one.item() for one in losses))


def load(folder: Path, dtype: torch.dtype) -> Any:
    """A model whose norms keep its precision; transformers' own go through float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _norm(module)
    return model.eval()


def documents(rows: Sequence[PackedRow]) -> list[PackedRow]:
    """Every document of the rows in order, each alone."""
    return [one_document(row, i) for row in rows for i in range(row.layout.lengths.size)]


def _norm(module: Any) -> Any:
    return lambda x: F.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)
