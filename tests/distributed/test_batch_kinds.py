"""The same documents in every kind of microbatch: loss and gradients in float64 are the same."""

from functools import partial
from typing import Any

import pytest

from megapack.layout.granularity import ParallelSizes, granularity
from tests.support.ranks import RankFailure, RankServer
from tests.support.rows import worst_error
from tests.support.unequal_rows import ragged_rows

ROWS = ragged_rows()
TP2_SP = ParallelSizes(tp=2, sequence_parallel=True)


PLAIN: dict[str, Any] = {}
EXPERTS_AND_MTP = {"moe": {"aux_loss_coefficient": 0.0}, "mtp_num_layers": 2}
"""A z-loss counts real tokens; a balancing loss would look at what shares a microbatch."""


def job_of(variant: dict[str, Any]) -> Any:
    from tests.support.tiny_training import JOB, MOE

    changes = dict(variant)
    if "moe" in changes:
        changes["moe"] = MOE.model_copy(update=changes["moe"])
    return JOB.model_copy(update=changes)


def packed(
    *, sizes: ParallelSizes, rows_per_microbatch: int = 1, variant: dict[str, Any] = PLAIN
) -> Any:
    from tests.support.tiny_training import packed_step, train_step

    make = partial(packed_step, rows_per_microbatch=rows_per_microbatch)
    return train_step(sizes=sizes, rows=ROWS, make=make, job=job_of(variant))


def dense(*, sizes: ParallelSizes, budget: int = 200, variant: dict[str, Any] = PLAIN) -> Any:
    from megapack.batch.iterate import dense_step
    from tests.support.tiny_training import train_step

    def make(rows: list[Any], context: Any) -> Any:
        mine = rows[context.dp_rank :: sizes.dp]
        return dense_step(
            mine, context=context, token_budget=budget, granularity=granularity(sizes)
        )

    return train_step(sizes=sizes, rows=ROWS, make=make, job=job_of(variant))


@pytest.fixture(scope="module")
def expected(ranks: RankServer) -> Any:
    """One process, one packed row a microbatch."""
    return ranks.run(packed, sizes=ParallelSizes())[0]


def same(got: Any, expected: Any) -> None:
    assert got.num_target_tokens == expected.num_target_tokens == got.normalizer_tokens
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
    assert worst_error(got.gradients, expected.gradients) < 1e-12


@pytest.mark.parametrize(
    ("sizes", "rows_per_microbatch"),
    [
        (ParallelSizes(), 5),
        (ParallelSizes(cp=2), 2),
        (ParallelSizes(dp=2), 2),
        (ParallelSizes(tp=2, cp=2, sequence_parallel=True), 3),
        (ParallelSizes(pp=2, cp=2), 2),
    ],
    ids=["one", "cp2", "dp2", "tp2-sp-cp2", "pp2-cp2"],
)
def test_several_ragged_rows_a_microbatch_equal_one_row_a_microbatch(
    ranks: RankServer, expected: Any, sizes: ParallelSizes, rows_per_microbatch: int
) -> None:
    outcomes = ranks.run(
        packed, world_size=sizes.world_size, sizes=sizes, rows_per_microbatch=rows_per_microbatch
    )
    same(outcomes[0], expected)


@pytest.mark.parametrize(
    "sizes",
    [
        ParallelSizes(),
        TP2_SP,
        ParallelSizes(pp=2),
        ParallelSizes(dp=2),
        ParallelSizes(tp=2, pp=2, sequence_parallel=True),
    ],
    ids=["one", "tp2-sp", "pp2", "dp2", "tp2-sp-pp2"],
)
def test_dense_batches_under_a_token_budget_equal_packed_rows(
    ranks: RankServer, expected: Any, sizes: ParallelSizes
) -> None:
    same(ranks.run(dense, world_size=sizes.world_size, sizes=sizes)[0], expected)


def test_dense_batches_at_cp2_are_refused(ranks: RankServer) -> None:
    with pytest.raises(RankFailure, match=r"dense batches at cp 2: expected cp 1.*Use packed rows"):
        ranks.run(dense, world_size=2, sizes=ParallelSizes(cp=2))


def test_experts_and_mtp_layers_see_the_same_in_joined_rows_and_dense_batches(
    ranks: RankServer,
) -> None:
    expected = ranks.run(packed, sizes=ParallelSizes(), variant=EXPERTS_AND_MTP)[0]
    joined = ranks.run(
        packed,
        world_size=2,
        sizes=ParallelSizes(cp=2),
        rows_per_microbatch=2,
        variant=EXPERTS_AND_MTP,
    )[0]
    same(joined, expected)
    same(ranks.run(dense, world_size=2, sizes=TP2_SP, variant=EXPERTS_AND_MTP)[0], expected)
