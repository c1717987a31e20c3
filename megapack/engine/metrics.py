"""Reducing a step: loss, counts and metrics of all microbatches and ranks, once a step.

Everything stays on the device until then: one all-reduce of float64 sums, one of int64 counts,
and one of maxima when there are any, whatever the number of metrics and microbatches. On the last
pipeline stage only; `run_schedule` hands the result to all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from megapack.errors import ContractError
from megapack.outputs.head import HeadResult, Metric, Over, Reduce
from megapack.parallel.collectives import all_reduce
from megapack.parallel.context import ParallelContext


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """A step over all ranks.

    Attributes:
        loss_sum: sum of the losses.
        num_target_tokens: positions whose label counted.
        divisor: what the loss is divided by; megatron-core divides gradients by it.
        metrics: one number each. A mean over nothing is absent: it is neither zero nor NaN.
    """

    loss_sum: float
    num_target_tokens: int
    divisor: int
    metrics: Mapping[str, float]


def reduce_step(results: Sequence[HeadResult], context: ParallelContext) -> StepTotals:
    """Collective over dp_cp_group: totals of a step, equal on all ranks of the group.

    All ranks must have the same metrics in every microbatch.

    Args:
        results: of this rank's microbatches, at least one.
        context: this rank.

    Raises:
        ContractError: a metric is missing from a microbatch, or is reduced in two ways.
    """
    metrics = {name: _same(name, results) for name in _names(results)}
    largest = [name for name, found in metrics.items() if found[0].reduce is Reduce.MAX]
    added = [name for name in metrics if name not in largest]
    means = [name for name in added if metrics[name][0].reduce is Reduce.MEAN]

    sums = _over_ranks(
        [
            _total([result.loss_sum for result in results], torch.float64),
            *[_share(metrics[name], context) for name in added],
        ],
        context,
    )
    counts = _over_ranks(
        [
            _total([result.num_target_tokens for result in results], torch.int64),
            _total([result.divides_by for result in results], torch.int64),
            *[_counted(metrics[name], context) for name in means],
        ],
        context,
    )
    highest = [
        torch.stack([one.value.detach().to(torch.float64) for one in metrics[name]]).max()
        for name in largest
    ]
    highs = _over_ranks(highest, context, op=dist.ReduceOp.MAX) if highest else []

    divisors: dict[str, float] = {
        name: counts[0] for name in added if metrics[name][0].reduce is Reduce.MEAN_BY_TOKENS
    } | dict(zip(means, counts[2:], strict=True))
    reduced = {
        name: value / divisors.get(name, 1)
        for name, value in zip(added, sums[1:], strict=True)
        if divisors.get(name, 1)
    } | dict(zip(largest, highs, strict=True))
    return StepTotals(
        loss_sum=sums[0],
        num_target_tokens=int(counts[0]),
        divisor=int(counts[1]),
        metrics={name: reduced[name] for name in metrics if name in reduced},
    )


def _names(results: Sequence[HeadResult]) -> list[str]:
    return sorted({name for result in results for name in result.metrics})


def _same(name: str, results: Sequence[HeadResult]) -> list[Metric]:
    found = [result.metrics[name] for result in results if name in result.metrics]
    kinds = {(metric.reduce, metric.over) for metric in found}
    if len(found) != len(results) or len(kinds) != 1:
        raise ContractError(
            f"metric {name!r}: expected one reduction in each of {len(results)} microbatches, "
            f"found {len(found)} values with {sorted(kinds)}."
        )
    return found


def _total(values: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([value.detach().to(dtype) for value in values]).sum()


def _share(found: Sequence[Metric], context: ParallelContext) -> torch.Tensor:
    """Sum of a metric's values here; one cp rank speaks for what they all hold."""
    return _once(_total([one.value for one in found], torch.float64), found[0], context)


def _counted(found: Sequence[Metric], context: ParallelContext) -> torch.Tensor:
    counts = [one.count for one in found if one.count is not None]
    return _once(_total(counts, torch.int64), found[0], context)


def _once(total: torch.Tensor, metric: Metric, context: ParallelContext) -> torch.Tensor:
    speaks = metric.over is Over.DP_CP or context.cp_rank == 0
    return total if speaks else torch.zeros_like(total)


def _over_ranks(
    values: Sequence[torch.Tensor], context: ParallelContext, *, op: object = None
) -> list[float]:
    """Collective over dp_cp_group: one all-reduce of a vector, then one copy to the host."""
    reduced: list[float] = all_reduce(
        torch.stack(list(values)), context.dp_cp_group, op=op
    ).tolist()
    return reduced
