"""Recorded routes to records, one a document, whatever the layout was.

Recording ranks hold shards: positions over tp (sequence parallelism) and cp, layers over pp. A
microbatch is brought together over tp and cp as soon as its forward has run; stages run
different microbatches at a time, so layers are brought together once, after the schedule. Cost:
the step's routes on the host of each stage's first rank, 2 bytes an expert.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from megapack.batch.microbatch import MicroBatch
from megapack.layout.token_fields import unplace
from megapack.parallel.collectives import gather_first_dim, gather_row
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from megapack.records.routed_experts import ROUTE_DTYPE, RoutedExperts

_Stage = tuple[tuple[int, ...], list[npt.NDArray[np.int16]]]


class RouteCollector:
    """Takes the routes of each forward of a step and gives records at its end."""

    def __init__(self, layers: Sequence[int], context: ParallelContext) -> None:
        """Start with nothing.

        Args:
            layers: this stage's MoE layers, as indices among those of the whole model.
            context: this rank.
        """
        self._layers = tuple(layers)
        self._context = context
        self._packed: list[PackedRow] = []
        self._routes: list[npt.NDArray[np.int16]] = []

    def take(self, microbatch: MicroBatch, chosen: torch.Tensor) -> None:
        """Collective over tp_group and cp_group: one forward's routes.

        Args:
            microbatch: what went in.
            chosen: int64 [n, layers of this stage, K], in the order of the routers.
        """
        context = self._context
        if context.sizes.sequence_parallel:
            whole = gather_first_dim(chosen.to(torch.int32), context.tp_group)
        else:
            whole = chosen.to(torch.int32) if context.tp_rank == 0 else None
        if whole is None:
            return
        batch = microbatch.labels.shape[0]
        tokens_first = whole.reshape(-1, batch, *whole.shape[1:]).transpose(0, 1).flatten(0, 1)
        row = gather_row(tokens_first.contiguous(), microbatch.row.layout, context)
        if row is not None:
            self._packed.append(microbatch.row)
            self._routes.append(row.cpu().numpy().astype(ROUTE_DTYPE))

    def records(self) -> tuple[RoutedExperts, ...]:
        """Collective over pp_group: the step's routes by document; empty but on the writing rank.

        Returns:
            One RoutedExperts a document, in the order of microbatches and segments.
        """
        context = self._context
        if context.tp_rank or context.cp_rank:
            return ()
        stages = _gather_stages((self._layers, self._routes), context)
        if not context.is_writer:
            return ()
        order = np.argsort([layer for layers, _ in stages for layer in layers])
        found: list[RoutedExperts] = []
        for i, row in enumerate(self._packed):
            whole = np.concatenate([routes[i] for _, routes in stages], axis=1)[:, order]
            found += [
                RoutedExperts(document_id=document_id, experts=experts)
                for document_id, experts in zip(
                    row.document_ids, unplace(whole, row.layout), strict=True
                )
            ]
        return tuple(found)


def _gather_stages(mine: _Stage, context: ParallelContext) -> list[_Stage]:
    """Collective over pp_group: what each stage has, on the last one; empty on the others."""
    if context.sizes.pp == 1:
        return [mine]
    box: list[_Stage] | None = None
    if context.is_last_stage:
        box = [mine] * context.sizes.pp
    dist.gather_object(mine, box, group=context.pp_group, group_dst=context.sizes.pp - 1)
    return box or []
