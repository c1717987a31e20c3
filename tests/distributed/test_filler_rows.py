"""Unequal work, tiny documents, rows and steps without targets, and means over unequal ranks."""

from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankServer
from tests.support.rows import make_row, worst_error

THREE = [make_row([5, 17, 3], seed=0), make_row([40, 9], seed=1), make_row([2, 1, 30], seed=2)]
FIVE = [*THREE, make_row([7, 13, 21], seed=4), make_row([33], seed=5)]
MASKED = make_row([11, 19, 5], seed=3, supervised=0.0)


def step(*, sizes: ParallelSizes, rows: list[Any]) -> Any:
    from tests.support.tiny_training import train_step

    return train_step(sizes=sizes, rows=rows)


def mean_of_unequal_ranks() -> dict[str, float]:
    import torch

    from megapack.engine.metrics import reduce_step
    from megapack.outputs.head import HeadResult, Metric, Over, Reduce
    from megapack.parallel.context import ParallelContext

    context = ParallelContext.initialize(ParallelSizes(dp=2), seed=0)
    losses = torch.tensor(2.0 if context.dp_rank == 0 else 9 * 1.0)
    metrics = {
        "loss": Metric(value=losses, reduce=Reduce.MEAN_BY_TOKENS),
        "largest": Metric(value=losses, reduce=Reduce.MAX),
        "total": Metric(value=losses, reduce=Reduce.SUM, over=Over.DP),
    }
    result = HeadResult(
        loss_sum=losses,
        num_target_tokens=torch.tensor(1 if context.dp_rank == 0 else 9),
        metrics=metrics,
    )
    return dict(reduce_step([result], context).metrics)


@pytest.mark.parametrize("rows", [THREE, FIVE], ids=["three", "five"])
def test_odd_number_of_rows_over_dp2_equals_one_process(ranks: RankServer, rows: list[Any]) -> None:
    expected = ranks.run(step, sizes=ParallelSizes(), rows=rows)[0]
    got = ranks.run(step, world_size=2, sizes=ParallelSizes(dp=2), rows=rows)[0]
    assert got.num_target_tokens == expected.num_target_tokens
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
    assert worst_error(got.gradients, expected.gradients) < 1e-12


def test_fewer_rows_than_dp_ranks_under_cp2_equals_one_process(ranks: RankServer) -> None:
    expected = ranks.run(step, sizes=ParallelSizes(), rows=THREE[:1])[0]
    sizes = ParallelSizes(dp=2, cp=2)
    got = ranks.run(step, world_size=4, sizes=sizes, rows=THREE[:1])[0]
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
    assert worst_error(got.gradients, expected.gradients) < 1e-12


def test_rank_with_masked_rows_weighs_nothing(ranks: RankServer) -> None:
    expected = ranks.run(step, sizes=ParallelSizes(), rows=THREE[:1])[0]
    got = ranks.run(step, world_size=2, sizes=ParallelSizes(dp=2), rows=[THREE[0], MASKED])[0]
    assert got.num_target_tokens == expected.num_target_tokens
    assert worst_error(got.gradients, expected.gradients) < 1e-12


def test_step_without_targets_has_zero_gradients_and_no_mean(ranks: RankServer) -> None:
    got = ranks.run(step, world_size=2, sizes=ParallelSizes(dp=2), rows=[MASKED, MASKED])[0]
    assert (got.loss_sum, got.num_target_tokens, got.metrics) == (0.0, 0, {})
    assert all(not gradient.any() for gradient in got.gradients.values())


@pytest.mark.parametrize(
    "sizes",
    [ParallelSizes(cp=2), ParallelSizes(tp=2, cp=2, sequence_parallel=True)],
    ids=["cp2", "tp2-sp-cp2"],
)
def test_rank_with_only_padding_still_runs(ranks: RankServer, sizes: ParallelSizes) -> None:
    rows = [make_row([2], seed=8, supervised=1.0)]
    expected = ranks.run(step, sizes=ParallelSizes(), rows=rows)[0]
    got = ranks.run(step, world_size=sizes.world_size, sizes=sizes, rows=rows)[0]
    assert got.num_target_tokens == 1
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
    assert worst_error(got.gradients, expected.gradients) < 1e-12


def test_mean_weighs_ranks_by_their_tokens(ranks: RankServer) -> None:
    got = ranks.run(mean_of_unequal_ranks, world_size=2)
    assert got[0] == got[1]
    assert got[0]["loss"] == pytest.approx(1.1)
    assert (got[0]["largest"], got[0]["total"]) == (9.0, 11.0)
    assert np.isfinite(list(got[0].values())).all()
