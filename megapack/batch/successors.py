"""Values of the next position of the same document, wherever context parallelism has put it.

What a draft is trained towards at position t is what the policy gives at t + 1. Inside a chunk that
is the next local position; behind a chunk's end it is the first position of a chunk that another
rank may hold, so each rank shares its chunks' first positions and nothing else: 2 * N values of a
row with N segments. Letters: n local positions, T = row_length, m = first positions of a rank.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from megapack.batch.microbatch import MicroBatch
from megapack.layout.token_fields import shift_left
from megapack.parallel.context import ParallelContext

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Successors:
    """Where the next position's values are found.

    Attributes:
        place: int64 [n]: among the local positions, then the shared ones of all cp ranks; -1 where
            the document has no next position, and at padding.
        shared: int64 [m], local positions whose values other ranks need, the same m on all ranks.
        context: this rank.
    """

    place: torch.Tensor
    shared: torch.Tensor
    context: ParallelContext

    @classmethod
    def of(cls, microbatch: MicroBatch, context: ParallelContext) -> Self:
        """Successors of a microbatch's positions, in `labels.reshape(-1)` order."""
        layout = microbatch.row.layout
        every = np.arange(layout.row_length)
        following = shift_left(every, layout, by=1, fill=-1)
        if context.sizes.cp == 1:
            orders = [microbatch.attention.local(every).reshape(-1)]
            firsts = [np.zeros(0, np.int64)]
        else:
            cp = context.sizes.cp
            orders = [layout.cp_index(cp_size=cp, cp_rank=rank) for rank in range(cp)]
            firsts = [_firsts(order) for order in orders]
        own = orders[context.cp_rank]
        most = max(len(first) for first in firsts)
        where = np.full(layout.row_length, -1, np.int64)
        for rank, (order, first) in enumerate(zip(orders, firsts, strict=True)):
            where[order[first]] = len(own) + rank * most + np.arange(len(first))
        where[own] = np.arange(len(own))
        after = following[own]
        mine = firsts[context.cp_rank]
        return cls(
            place=_put(np.where(after >= 0, where[after], -1), context),
            shared=_put(np.pad(mine, (0, most - len(mine))), context),
            context=context,
        )

    @torch.no_grad()
    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Collective over cp_group: the next position's values; not differentiable.

        Args:
            values: [n, ...].

        Returns:
            [n, ...], zero where there is no next position.
        """
        found = values
        if self.context.cp_group is not None and self.context.sizes.cp > 1:
            own = values[self.shared]
            size = self.context.sizes.cp * own.shape[0]
            others = own.new_empty(size, *own.shape[1:])
            dist.all_gather_into_tensor(others, own, group=self.context.cp_group)
            found = torch.cat((values, others))
        taken = found[self.place.clamp(min=0)]
        none = (self.place < 0).view(-1, *[1] * (values.dim() - 1))
        return taken.masked_fill_(none, 0.0)


def _firsts(order: Positions) -> Positions:
    """Local positions that do not follow the local position before them in the row."""
    return np.flatnonzero(np.diff(order, prepend=-2) != 1)


def _put(values: npt.NDArray[Any], context: ParallelContext) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(context.device)
