import json

import pytest
from pydantic import ValidationError

from megapack.errors import ConfigError
from megapack.jobs.addresses import train_address
from megapack.jobs.parallel import ParallelJob
from megapack.jobs.prepare import PrepareJob
from megapack.jobs.train import TrainJob, TrainSettings

PREPARE = {
    "sources": [{"uri": "chats.jsonl"}],
    "tokenizer": "tok",
    "tokenize": {"long_documents": "drop"},
    "pack": {"row_length": 64},
    "store": "s3://bucket/x",
}
MODEL = {
    "num_layers": 2,
    "hidden_size": 32,
    "ffn_hidden_size": 64,
    "num_attention_heads": 4,
    "num_query_groups": 2,
}

DATASET = {
    "uri": "out",
    "version": 1,
    "digest": "0" * 64,
    "num_rows": 1,
    "num_real_tokens": 1,
    "num_target_tokens": 1,
}


def test_prepare_job_round_trips_through_its_file(tmp_path):
    job = PrepareJob.model_validate(PREPARE)
    job.save(tmp_path / "job.json")
    assert PrepareJob.load(tmp_path / "job.json") == job
    assert job.max_document_tokens == 65


def test_prepare_job_refuses_row_length_off_the_multiples():
    wrong = {**PREPARE, "pack": {"row_length": 66}, "pack_for": {"context_parallel_size": 2}}
    with pytest.raises(ValidationError, match=r"66 is not a multiple of row granularity 4.*64 or"):
        PrepareJob.model_validate(wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenise": {}}, "Extra inputs are not permitted"),
        ({"tokenize": {"format": "nemotron-h"}}, "nemotron-h-aligned"),
        ({"tokenize": {}}, "long_documents"),
        ({"pack": {}}, "row_length"),
        ({"sources": []}, "sources"),
    ],
)
def test_prepare_job_refuses_wrong_fields(change, message):
    with pytest.raises(ValidationError, match=message):
        PrepareJob.model_validate({**PREPARE, **change})


def test_job_file_error_names_file_field_and_value(tmp_path):
    file = tmp_path / "job.json"
    file.write_text('{"tensor_model_parallel_size": 0}')
    with pytest.raises(ConfigError, match=r"job.json.*\n.*tensor_model_parallel_size.*found 0"):
        ParallelJob.load(file)
    with pytest.raises(ConfigError, match="expected a job file, found none"):
        ParallelJob.load(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"global_batch_rows": 3, "parallel": {"data_parallel_size": 2}}, "multiple of data_par"),
        ({"parallel": {"tensor_model_parallel_size": 3}}, "num_query_groups = 2"),
        ({"parallel": {"pipeline_model_parallel_size": 4}}, "num_layers = 2"),
        ({"model": {**MODEL, "num_query_groups": 3}}, "multiple of num_query_groups = 3"),
    ],
)
def test_train_settings_refuse_impossible_layouts(change, message):
    good = {"model": MODEL, "steps": 1, "global_batch_rows": 4}
    TrainSettings.model_validate(good)
    with pytest.raises(ValidationError, match=message):
        TrainSettings.model_validate({**good, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"tokenise": {}},
            "  tokenise: no such field; did you mean tokenize? Known: sources, tokenizer, ",
        ),
        (
            {"sources": [{"uri": "a", "wieght": 2}]},
            "  sources.0.wieght: no such field; did you mean weight? Known: uri, name, format, we",
        ),
        (
            {"pack": {"row_length": 64, "blend": {"unit": "epochs", "zzz": 1}}},
            "  pack.blend.zzz: no such field. Known: unit, total, max_epochs",
        ),
        (
            {"tokenize": {"long_documents": "drop", "loss_parts": "content"}},
            "  tokenize.loss_parts: expected a list, written '[\"content\"]'; known: content, "
            "reasoning, tool_calls, end_of_turn, template_text (found 'content')",
        ),
    ],
)
def test_a_wrong_field_is_told_with_what_to_write(tmp_path, change, words):
    file = tmp_path / "job.json"
    file.write_text(json.dumps({**PREPARE, **change}))
    with pytest.raises(ConfigError) as error:
        PrepareJob.load(file)
    (line,) = str(error.value).splitlines()[1:]
    assert line.startswith(words)


@pytest.mark.parametrize("backend", ["auto", "portable"])
def test_offload_without_transformer_engine_by_name_is_refused(backend):
    model = {**MODEL, "offload": ["core_attn"]}
    settings = {"model": model, "steps": 1, "global_batch_rows": 1}
    with pytest.raises(ValidationError, match=f"core_attn with backend = {backend}, expected"):
        TrainSettings.model_validate(settings | {"backend": backend})
    assert TrainSettings.model_validate(settings | {"backend": "te"}).model.offload


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows_per_microbatch": 2}, r"dense_token_budget = 64 with rows_per_microbatch = 2, exp"),
        (
            {"parallel": {"context_parallel_size": 2}},
            r"dense_token_budget = 64 with context_parallel_size = 2, expected 1.*packed rows",
        ),
    ],
)
def test_dense_batches_refuse_what_they_cannot_run_with(change, message):
    settings = {"model": MODEL, "steps": 1, "global_batch_rows": 2, "dense_token_budget": 64}
    assert TrainSettings.model_validate(settings).rows_per_microbatch == 1
    with pytest.raises(ValidationError, match=message):
        TrainSettings.model_validate({**settings, **change})


def test_address_leaves_microbatches_out_unless_a_balancing_loss_looks_at_them():
    experts = {"num_experts": 4, "experts_per_token": 2, "expert_ffn_hidden_size": 16}

    def address(rows, moe=None):
        model = {**MODEL, "moe": moe}
        settings = {"model": model, "steps": 1, "global_batch_rows": 2}
        job = TrainJob.model_validate(
            {
                "dataset": DATASET,
                "settings": {**settings, "rows_per_microbatch": rows},
                "output": "out",
            }
        )
        return train_address(job)

    balanced = {**experts, "aux_loss_coefficient": 0.01}
    assert address(1) == address(2)
    assert address(1, experts) == address(2, experts)
    assert address(1, balanced) != address(2, balanced)
