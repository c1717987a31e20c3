"""Reducing a step's results in one process; over ranks in tests/distributed/test_filler_rows.py."""

from collections.abc import Mapping

import pytest
import torch

from megapack.engine.metrics import reduce_step
from megapack.errors import ContractError
from megapack.outputs.head import HeadResult, Metric, Reduce
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


def test_metric_missing_from_a_microbatch_is_refused() -> None:
    with pytest.raises(ContractError, match="metric 'sum': expected one reduction in each of 2"):
        reduce_step([result({"sum": metric(1.0, Reduce.SUM)}), result({})], ONE)


def test_mean_without_a_count_is_refused() -> None:
    with pytest.raises(ContractError, match="expected a count for mean"):
        metric(1.0, Reduce.MEAN)
