"""Reducing metrics: each says how, over which ranks; a step's microbatches come first.

Sums run in float64. On the last pipeline stage only; `run_schedule` hands the result to all.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from megapack.errors import ContractError
from megapack.outputs.head import Metric, Over, Reduce
from megapack.parallel.collectives import all_reduce
from megapack.parallel.context import ParallelContext


def reduce_metrics(
    microbatches: Sequence[Mapping[str, Metric]],
    *,
    num_target_tokens: int,
    context: ParallelContext,
) -> dict[str, float]:
    """Collective over dp_cp_group: one number for each metric.

    All ranks must have the same metrics in every microbatch.

    Args:
        microbatches: metrics of this rank's microbatches.
        num_target_tokens: target tokens of the step over all ranks, the divisor of
            MEAN_BY_TOKENS.
        context: this rank.

    Returns:
        Metrics by name. A mean over no tokens is absent: it is neither zero nor NaN.

    Raises:
        ContractError: a metric is missing from a microbatch, or is reduced in two ways.
    """
    names = sorted({name for metrics in microbatches for name in metrics})
    reduced = {}
    for name in names:
        found = [metrics[name] for metrics in microbatches if name in metrics]
        kinds = {(metric.reduce, metric.over) for metric in found}
        if len(found) != len(microbatches) or len(kinds) != 1:
            raise ContractError(
                f"metric {name!r}: expected one reduction in each of {len(microbatches)} "
                f"microbatches, found {len(found)} values with {sorted(kinds)}."
            )
        value = _reduce(found, context)
        if found[0].reduce is not Reduce.MEAN_BY_TOKENS:
            reduced[name] = value
        elif num_target_tokens:
            reduced[name] = value / num_target_tokens
    return reduced


def _reduce(found: Sequence[Metric], context: ParallelContext) -> float:
    values = torch.stack([metric.value.detach().to(torch.float64) for metric in found])
    group = context.dp_cp_group if found[0].over is Over.DP_CP else context.dp_group
    if found[0].reduce is Reduce.MAX:
        return float(all_reduce(values.max(), group, op=dist.ReduceOp.MAX))
    return float(all_reduce(values.sum(), group))
