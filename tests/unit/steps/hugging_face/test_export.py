"""What an export says in config.json, and what it refuses before a process starts."""

import json

import pytest

from megapack.errors import ConfigError
from megapack.jobs.export_weights import ExportWeightsJob
from megapack.jobs.model import RopeScalingJob
from megapack.jobs.moe import MoeJob
from megapack.steps.hugging_face.config import model_of_config
from megapack.steps.hugging_face.export import config_of_model, export_weights
from megapack.store.files import upload_files
from megapack.store.location import open_location
from megapack.store.manifest import Contents
from megapack.store.versions import commit
from tests.support.hf_folder import CONFIG, write_folder
from tests.support.tiny_dataset import MODEL, make_dataset, make_rows, train_job

SCALING = RopeScalingJob(factor=4, low_freq_factor=1, high_freq_factor=3, original_max_position=64)


class StartedError(Exception):
    """Carries the job of a process that would have been started."""


def launch(command, **_):
    raise StartedError(ExportWeightsJob.load(command.arguments[1]))


def export(uri, output, **changes):
    return export_weights(str(uri), output, on_line=lambda *_: None, launcher=launch, **changes)


@pytest.fixture
def dataset(tmp_path):
    return make_dataset(tmp_path / "data", make_rows(3, seed=1))


@pytest.fixture
def checkpoint(dataset, tmp_path):
    """A committed checkpoint of a random start, with one file."""
    job = train_job(dataset, tmp_path / "checkpoints")
    files = tmp_path / "files"
    files.mkdir()
    (files / "shard").write_bytes(b"weights")
    location = open_location(job.output)
    settings = {
        "job": job.model_dump(mode="json"),
        "packed": {
            "row_length": 96,
            "segment_granularity": 8,
            "row_granularity": 16,
            "pad_id": 0,
            "vocab_size": 101,
            "tokenizer_digest": "tiny",
            "format": "identity",
        },
    }
    contents = Contents(
        schema_id="megapack.checkpoint/1",
        kind="checkpoint",
        parts=upload_files(location, files),
        counts={"step": 6, "consumed_rows": 24},
        settings=settings,
    )
    commit(location, contents.manifest())
    return job.output


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("scaling", [None, SCALING])
def test_config_is_read_back_as_the_same_model(family, scaling):
    model = model_of_config({**CONFIG, "model_type": family, "head_dim": 16}, where="")
    model = model.model_copy(update={"rope_scaling": scaling, "init_std": 0.3})
    written = json.loads(json.dumps(config_of_model(model)))
    assert model_of_config(written, where="") == model


def test_a_shape_that_no_class_has_is_refused():
    both = MODEL.model_copy(update={"qkv_bias": True, "qk_layernorm": True})
    with pytest.raises(ConfigError, match="expected one of them at most, found both"):
        config_of_model(both)
    moe = MoeJob(num_experts=4, experts_per_token=2, expert_ffn_hidden_size=16)
    for found, update in {
        "mtp_num_layers = 1": {"mtp_num_layers": 1},
        "moe.num_experts = 4": {"moe": moe},
        "moe.num_experts = 4 and mtp_num_layers = 1": {"moe": moe, "mtp_num_layers": 1},
    }.items():
        whole = f"without multi-token prediction layers, found {found}. Such weights"
        with pytest.raises(ConfigError, match=whole):
            config_of_model(MODEL.model_copy(update=update))


def test_export_takes_shape_and_vocabulary_from_the_checkpoint(checkpoint, tmp_path):
    with pytest.raises(StartedError) as started:
        export(checkpoint, tmp_path / "out")
    job = started.value.args[0]
    assert job.model == MODEL.model_copy(update={"vocab_size": 101})
    assert (job.config["max_position_embeddings"], job.checkpoint.step) == (96, 6)


def test_export_like_a_folder_keeps_the_rest_of_its_configuration(checkpoint, tmp_path):
    shape = {**config_of_model(MODEL), "vocab_size": 101, "rope_theta": 10_000.0}
    like = write_folder(
        tmp_path / "like", **shape, max_position_embeddings=4096, eos_token_id=[2, 3]
    )
    with pytest.raises(StartedError) as started:
        export(checkpoint, tmp_path / "out", like=like)
    config = started.value.args[0].config
    assert (config["max_position_embeddings"], config["eos_token_id"]) == (4096, [2, 3])
    assert "rope_theta" not in config
    assert "torch_dtype" not in config
    other = write_folder(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"vocab_size = 101, the starting model .* has 107"):
        export(checkpoint, tmp_path / "out", like=other)


def test_export_of_what_is_no_checkpoint_is_refused(dataset, tmp_path):
    with pytest.raises(ConfigError, match="expected a checkpoint, found kind 'dataset'"):
        export(dataset.uri, tmp_path / "out")
