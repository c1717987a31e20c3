"""Layouts that a job refuses are still refused, or wrong, in megatron-core itself.

Each runs round our check. When one starts to give the numbers of one process, its test fails
(strict xfail): take the check out of `megapack.jobs.model_layout` and let the layout be used.
"""

from typing import NamedTuple

import pytest

from megapack.jobs.model import ModelJob
from megapack.jobs.model_layout import layout_faults
from megapack.layout.granularity import ParallelSizes
from tests.support.layout_table import MODELS, model_job
from tests.support.ranks import RankFailure, RankServer
from tests.support.rows import StepOutcome, make_row, worst_error

ROWS = [make_row([40, 1, 30], seed=seed) for seed in range(6)]
EXACT = 1e-12


class NotInMegatron(Exception):  # noqa: N818 - what the test hopes not to see
    """megatron-core refuses the layout in the words we know, or gives other numbers."""


class Refused(NamedTuple):
    """A layout, the model it cannot train, and what megatron-core says."""

    sizes: ParallelSizes
    job: ModelJob
    words: str


def with_experts(**settings: int) -> ModelJob:
    """Four experts."""
    return model_job("MoE", {"moe": {**MODELS["MoE"]["moe"], **settings}})


THREE_GROUPS = {"num_attention_heads": 6, "num_query_groups": 3, "kv_channels": 8}
TP2, TP2_SP = ParallelSizes(tp=2), ParallelSizes(tp=2, sequence_parallel=True)
ETP2 = ParallelSizes(tp=2, etp=2, sequence_parallel=True)

LAYOUTS = {
    "tp3, 4 heads": Refused(
        ParallelSizes(tp=3), model_job("dense"), "must be a multiple of tensor_model_parallel"
    ),
    "tp2, 3 key/value heads": Refused(
        TP2, model_job("dense", THREE_GROUPS), "must be a multiple or divisor of"
    ),
    "tp2, odd MLP": Refused(
        TP2, model_job("dense", {"ffn_hidden_size": 47}), "47 is not divisible by 2"
    ),
    "pp2, 3 layers": Refused(
        ParallelSizes(pp=2), model_job("3 layers"), "num_layers=3 should be divisible by"
    ),
    "ep2, no experts": Refused(
        ParallelSizes(dp=2, ep=2), model_job("dense"), "num_moe_experts must be non None"
    ),
    "tp2, experts": Refused(TP2, with_experts(), "without also enabling sequence parallelism"),
    "ep3, 4 experts": Refused(
        ParallelSizes(dp=3, ep=3), with_experts(), "assert self.config.num_moe_experts % ep_size"
    ),
    "etp2, odd experts": Refused(
        ETP2, with_experts(expert_ffn_hidden_size=23), "23 is not divisible by 2"
    ),
    "tp2 sp, odd shared expert": Refused(
        TP2_SP, with_experts(shared_expert_ffn_hidden_size=23), "23 is not divisible by 2"
    ),
    "ep4 on dp2": Refused(ParallelSizes(dp=2, ep=4), with_experts(), "is not divisible by"),
}


def step_round_the_check(*, sizes: ParallelSizes, job: ModelJob) -> StepOutcome:
    import megapack.model.build
    from tests.support.tiny_training import train_step

    megapack.model.build.layout_faults = lambda *_: []
    return train_step(sizes=sizes, rows=ROWS, job=job)


@pytest.mark.xfail(strict=True, raises=NotInMegatron)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_gives_the_numbers_of_one_process(ranks: RankServer, name: str) -> None:
    sizes, job, words = LAYOUTS[name]
    try:
        got = ranks.run(step_round_the_check, world_size=sizes.world_size, sizes=sizes, job=job)[0]
    except RankFailure as failure:
        # Any other failure fails the test.
        if words in str(failure):
            raise NotInMegatron(words) from failure
        raise
    one = ranks.run(step_round_the_check, sizes=ParallelSizes(), job=job)[0]
    error = worst_error(got.gradients, one.gradients)
    if not error < EXACT:
        raise NotInMegatron(f"gradients are off by {error:.1e}")


def test_every_one_of_them_is_refused_by_the_job() -> None:
    for name, (sizes, job, _) in LAYOUTS.items():
        assert layout_faults(job, sizes), name
