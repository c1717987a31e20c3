"""Collectives that the layers above need, each naming its group.

With no group (one process, or a fake context) every function is the identity, so that callers
have one code path. Letters: T = row_length, cp and tp = group sizes.
"""

from typing import Any

import torch
import torch.distributed as dist

from megapack.layout.pack_layout import PackLayout
from megapack.parallel.context import Group, ParallelContext


def all_reduce(value: torch.Tensor, group: Group | None, *, op: Any = None) -> torch.Tensor:  # noqa: ANN401 - dist.ReduceOp is untyped
    """Collective over `group`: reduce a copy of the value; the input stays as it is.

    Args:
        value: any shape, on the group's device.
        group: None for the identity.
        op: a `dist.ReduceOp`, SUM when None.
    """
    total = value.clone()
    if group is not None and dist.get_world_size(group) > 1:
        dist.all_reduce(total, op=dist.ReduceOp.SUM if op is None else op, group=group)
    return total


def sum_counts(counts: list[int], group: Group | None, *, device: torch.device) -> list[int]:
    """Collective over `group`: exact sums of whole numbers, in int64."""
    tensor = torch.tensor(counts, dtype=torch.int64, device=device)
    return [int(count) for count in all_reduce(tensor, group).tolist()]


def gather_first_dim(value: torch.Tensor, group: Group | None) -> torch.Tensor | None:
    """Collective over `group`: concatenate along dim 0 on the group's rank 0.

    Not differentiable. All ranks must call with equal shapes.

    Args:
        value: [n, ...].
        group: None for the identity.

    Returns:
        [n * size, ...] on the group's rank 0, None on the others.
    """
    if group is None or dist.get_world_size(group) == 1:
        return value
    size = dist.get_world_size(group)
    first = dist.get_rank(group) == 0
    parts = [torch.empty_like(value) for _ in range(size)] if first else None
    dist.gather(value.contiguous(), parts, group=group, group_dst=0)
    return None if parts is None else torch.cat(parts)


def gather_row(
    value: torch.Tensor, layout: PackLayout, context: ParallelContext, *, over_tp: bool = False
) -> torch.Tensor | None:
    """Collective over cp_group (and tp_group): bring one row's values together, in row order.

    Undoes sequence parallelism first, then the per-segment zigzag of context parallelism. All
    ranks of both groups must call.

    Args:
        value: [T/cp, ...], or [T/cp/tp, ...] when `over_tp`; on context.device.
        layout: geometry of the row.
        context: this rank.
        over_tp: the value is split over tp ranks along the row too (sequence parallelism).

    Returns:
        [T, ...] in row order on the rank with tp_rank 0 and cp_rank 0, None on the others.
    """
    local = gather_first_dim(value, context.tp_group) if over_tp else value
    if local is None:
        return None
    if not over_tp and context.tp_rank != 0:
        return None
    stacked = gather_first_dim(local, context.cp_group)
    if stacked is None or context.sizes.cp == 1:
        return stacked
    row = torch.empty_like(stacked)
    row[row_order(layout, context.sizes.cp).to(stacked.device)] = stacked
    return row


def row_order(layout: PackLayout, cp_size: int) -> torch.Tensor:
    """int64 [T]: row position of each entry of the cp ranks' shards laid end to end."""
    return torch.cat(
        [
            torch.from_numpy(layout.cp_index(cp_size=cp_size, cp_rank=rank))
            for rank in range(cp_size)
        ]
    )
