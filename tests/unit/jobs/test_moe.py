"""What a model with experts may look like, and at which layouts it is refused."""

import re

import pytest
from pydantic import ValidationError

from megapack.jobs.addresses import train_address
from megapack.jobs.model import ModelJob, Recompute
from megapack.jobs.model_layout import layout_faults
from megapack.jobs.moe import MoeJob
from megapack.jobs.train import TrainJob
from megapack.layout.granularity import ParallelSizes
from megapack.records.refs import DatasetRef

MOE = {"num_experts": 4, "experts_per_token": 2, "expert_ffn_hidden_size": 24}
MODEL = {
    "num_layers": 2,
    "hidden_size": 32,
    "ffn_hidden_size": 64,
    "num_attention_heads": 4,
    "num_query_groups": 2,
}
DATASET = DatasetRef(
    uri="here", version=1, digest="0" * 64, num_rows=1, num_real_tokens=1, num_target_tokens=1
)
SP2 = {"tp": 2, "sequence_parallel": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts_per_token": 5}, "experts_per_token = 5, expected at most num_experts = 4"),
        ({"experts_per_token": 1}, "gives the router no gradient"),
        ({"score_function": "sigmoid", "weights": "all"}, "expected chosen"),
        (
            {"expert_bias_update_rate": 0.1},
            "expert_bias_update_rate = 0.1 with .* expected sigmoid",
        ),
    ],
)
def test_moe_job_refuses_a_router_that_cannot_be(change, message):
    with pytest.raises(ValidationError, match=message):
        MoeJob.model_validate({**MOE, **change})


def test_model_job_refuses_experts_in_no_layer():
    with pytest.raises(ValidationError, match="num_dense_layers = 2, expected fewer than"):
        ModelJob.model_validate({**MODEL, "moe": {**MOE, "num_dense_layers": 2}})


@pytest.mark.parametrize(
    ("moe", "sizes", "message"),
    [
        (None, {"dp": 2, "ep": 2}, "ep = 2 with a model without experts"),
        (MOE, {"tp": 2}, "without sequence parallelism .* MoELayer refuses"),
        (MOE, {"dp": 3, "ep": 3}, "num_experts = 4, expected a multiple of ep = 3"),
        (MOE, {"ep": 2}, "dp x cp x tp = 1, expected a multiple of ep x etp = 2"),
        (MOE, {"dp": 5, "etp": 5}, "expert_ffn_hidden_size = 24, expected a multiple of etp = 5"),
        (
            {**MOE, "shared_expert_ffn_hidden_size": 9},
            SP2,
            "shared_expert_ffn_hidden_size = 9, expected a multiple of tp = 2",
        ),
    ],
)
def test_layouts_that_cannot_train_experts_are_refused_by_name(moe, sizes, message):
    (fault,) = layout_faults(ModelJob.model_validate({**MODEL, "moe": moe}), ParallelSizes(**sizes))
    assert re.search(message, fault), fault


def test_layouts_that_train_experts_have_no_fault():
    model = ModelJob.model_validate({**MODEL, "moe": MOE, "mtp_num_layers": 1})
    for sizes in ({"dp": 2, "ep": 2}, {**SP2, "ep": 2}, {**SP2, "dp": 2, "ep": 2, "etp": 2}):
        assert layout_faults(model, ParallelSizes(**sizes)) == []


def job(model, parallel=None):
    return TrainJob.model_validate(
        {
            "dataset": DATASET.model_dump(),
            "settings": {
                "model": model,
                "parallel": parallel or {},
                "steps": 1,
                "global_batch_rows": 2,
            },
            "output": "there",
        }
    )


def test_train_job_refuses_the_layout_before_anything_is_read():
    with pytest.raises(ValidationError, match="without sequence parallelism"):
        job({**MODEL, "moe": MOE}, {"tensor_model_parallel_size": 2})


def test_recompute_does_not_change_where_a_run_stands():
    model = {**MODEL, "moe": MOE}
    plain, again = job(model), job({**model, "recompute": Recompute.FULL})
    assert train_address(plain) == train_address(again)
    assert train_address(plain) != train_address(job(MODEL))
