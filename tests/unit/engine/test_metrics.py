"""Reducing a step's results in one process; over ranks in tests/distributed/test_filler_rows.py."""

from collections.abc import Mapping

import pytest
import torch

from megapack.engine.metrics import reduce_step
from megapack.errors import ContractError
from megapack.layout.granularity import ParallelSizes
from megapack.outputs.head import HeadResult, Metric, Over, Reduce
from megapack.parallel.context import ParallelContext

ONE = ParallelContext.single()


def result(metrics: Mapping[str, Metric], *, targets: int = 5) -> HeadResult:
    return HeadResult(
        loss_sum=torch.tensor(1.0), num_target_tokens=torch.tensor(targets), metrics=metrics
    )


def metric(value: float, reduce: Reduce, count: int | None = None) -> Metric:
    counted = None if count is None else torch.tensor(count)
    return Metric(value=torch.tensor(value), reduce=reduce, count=counted)


def test_metrics_reduce_as_each_says() -> None:
    microbatches = [
        result(
            {
                "tokens": metric(value, Reduce.MEAN_BY_TOKENS),
                "own": metric(value, Reduce.MEAN, count),
                "sum": metric(value, Reduce.SUM),
                "max": metric(value, Reduce.MAX),
            }
        )
        for value, count in ((2.0, 1), (9.0, 3))
    ]
    got = reduce_step(microbatches, ONE)
    assert (got.loss_sum, got.num_target_tokens, got.divisor) == (2.0, 10, 10)
    assert got.metrics == pytest.approx({"tokens": 1.1, "own": 2.75, "sum": 11.0, "max": 9.0})


def test_mean_over_nothing_is_absent() -> None:
    empty = {
        "tokens": metric(0.0, Reduce.MEAN_BY_TOKENS),
        "own": metric(0.0, Reduce.MEAN, 0),
        "sum": metric(0.0, Reduce.SUM),
    }
    assert reduce_step([result(empty, targets=0)], ONE).metrics == {"sum": 0.0}


def test_counts_beyond_float32_are_exact() -> None:
    targets = 2**24 + 1
    got = reduce_step([result({}, targets=targets), result({}, targets=0)], ONE)
    assert got.num_target_tokens == targets


def test_value_of_a_whole_row_counts_once_over_the_ranks_that_share_the_row() -> None:
    """Without a group a rank's part of the sum over ranks stays as it is."""
    totals = {"whole": 0.0, "share": 0.0, "mean": 0.0}
    for cp_rank in range(2):
        context = ParallelContext.fake(ParallelSizes(cp=2), cp_rank=cp_rank)
        metrics = {
            "whole": Metric(value=torch.tensor(6.0), reduce=Reduce.SUM, over=Over.DP),
            "share": Metric(value=torch.tensor(3.0), reduce=Reduce.SUM, over=Over.DP_CP),
            "mean": Metric(
                value=torch.tensor(6.0), reduce=Reduce.MEAN, over=Over.DP, count=torch.tensor(4)
            ),
        }
        for name, value in reduce_step([result(metrics)], context).metrics.items():
            totals[name] += value
    assert totals == {"whole": 6.0, "share": 6.0, "mean": 1.5}


def test_metric_missing_from_a_microbatch_is_refused() -> None:
    with pytest.raises(ContractError, match="metric 'sum': expected one reduction in each of 2"):
        reduce_step([result({"sum": metric(1.0, Reduce.SUM)}), result({})], ONE)


def test_mean_without_a_count_is_refused() -> None:
    with pytest.raises(ContractError, match="expected a count for mean"):
        metric(1.0, Reduce.MEAN)
