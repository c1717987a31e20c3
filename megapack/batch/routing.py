"""Routed experts as a token field: into a row, through context parallelism, to the routers.

Routes are placed like every other field (`layout.token_fields.place`) and cut by the microbatch's
own index, so they cannot drift from the tokens. Padding stays *marked* (NOT_CAPTURED) all the way
and gets a route only in `for_routers`, last of all: distinct experts spread evenly, so that
padding neither loads one expert nor passes for a captured route. Letters: T = row_length, L MoE
layers, K experts per token, E experts, n = positions that the routers of this rank see.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from megapack.batch.fields import RowFields
from megapack.batch.fields import carry as carry_fields
from megapack.batch.microbatch import MicroBatch
from megapack.errors import DataError
from megapack.layout.token_fields import TokenField, place
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from megapack.records.routed_experts import (
    NOT_CAPTURED,
    ROUTE_DTYPE,
    RoutedExperts,
    RouteShape,
)

ROUTED_EXPERTS = "routed_experts"
"""Name of the microbatch's field."""

Placed = Mapping[str, npt.NDArray[Any]]


class MissingRoutes(StrEnum):
    """What happens at a real token without a captured route; padding is no such token.

    LIVE: the router chooses for it, and the step counts it. REFUSE: the row is an error.
    """

    LIVE = "live"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RouteTable:
    """Captured routes by document.

    Attributes:
        shape: of the model that will replay them.
        by_document: routes of each document that has some.
        missing: policy for real tokens without a route.
    """

    shape: RouteShape
    missing: MissingRoutes
    by_document: Mapping[str, RoutedExperts] = field(default_factory=dict)

    @classmethod
    def of(
        cls, routes: Iterable[RoutedExperts], *, shape: RouteShape, missing: MissingRoutes
    ) -> "RouteTable":
        """Check routes and key them by document.

        Raises:
            DataError: routes do not fit the model, or a document has two different ones.
        """
        known: dict[str, RoutedExperts] = {}
        for one in routes:
            one.check(shape)
            other = known.setdefault(one.document_id, one)
            if not np.array_equal(other.experts, one.experts):
                raise DataError(
                    f"RouteTable: document {one.document_id}: expected one set of routes, found "
                    "two that differ."
                )
        return cls(shape=shape, missing=missing, by_document=MappingProxyType(known))

    def place(self, row: PackedRow) -> npt.NDArray[np.int16]:
        """Routes of a row's documents in their slots.

        Args:
            row: a row, of one or of several joined ones, or a filler row.

        Returns:
            int16 [T, L, K]; NOT_CAPTURED at padding, in the tail and where nothing was captured.

        Raises:
            DataError: a document has routes for another number of positions, or, under REFUSE, a
                token without.
        """
        lengths = row.layout.lengths.tolist()
        values = [
            self._of_document(document_id, length)
            for document_id, length in zip(row.document_ids, lengths, strict=True)
        ]
        spec = TokenField(
            name=ROUTED_EXPERTS,
            dtype=ROUTE_DTYPE,
            pad=NOT_CAPTURED,
            trailing=(self.shape.num_layers, self.shape.top_k),
        )
        return place(spec, values, row.layout)

    def _of_document(self, document_id: str, length: int) -> npt.NDArray[np.int16]:
        known = self.by_document.get(document_id)
        if known is None:
            unknown = (length, self.shape.num_layers, self.shape.top_k)
            experts = np.full(unknown, NOT_CAPTURED, dtype=ROUTE_DTYPE)
        else:
            experts = known.experts
        if len(experts) != length:
            raise DataError(
                f"RouteTable: document {document_id}: expected routes for its {length} positions, "
                f"found {len(experts)}. Give one route a token, without padding, and "
                f"{NOT_CAPTURED} where none was captured."
            )
        unrouted = (experts[..., 0] == NOT_CAPTURED).any(axis=-1)
        if self.missing is MissingRoutes.REFUSE and unrouted.any():
            raise DataError(
                f"RouteTable: document {document_id}: expected a captured route for each of its "
                f"{length} positions, found none for {int(unrouted.sum())}, the first at position "
                f"{int(np.flatnonzero(unrouted)[0])}. Capture them, or use missing = live."
            )
        return experts


def carry(microbatch: MicroBatch, placed: Placed) -> MicroBatch:
    """Give a microbatch further token fields, cut as its labels are.

    Args:
        microbatch: of this rank.
        placed: by name, an array [T, ...] over the positions of `microbatch.row`.

    Returns:
        The microbatch with fields of its labels' leading shape, on its device.
    """
    return carry_fields(microbatch, RowFields(local=placed))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttachRoutes:
    """A stage of `StepBatch.stages`: gives each microbatch the routes of its documents.

    Attributes:
        table: captured routes.
    """

    table: RouteTable

    def __call__(self, microbatch: MicroBatch) -> MicroBatch:
        """The microbatch with the field ROUTED_EXPERTS, int16 [*shape of labels, L, K]."""
        return carry(microbatch, {ROUTED_EXPERTS: self.table.place(microbatch.row)})


def router_order(value: torch.Tensor, context: ParallelContext) -> torch.Tensor:
    """A token field as the routers of this rank meet its positions.

    Activations are [S, B, H] and, under sequence parallelism, split along S over tp ranks.

    Args:
        value: [B, S, ...], this cp rank's share.
        context: this rank.

    Returns:
        [n, ...] with n = S*B, or S*B/tp.
    """
    along = value.transpose(0, 1)
    if context.sizes.sequence_parallel:
        along = along.chunk(context.sizes.tp, dim=0)[context.tp_rank]
    return along.flatten(0, 1)


def for_routers(
    microbatch: MicroBatch, context: ParallelContext, *, num_experts: int
) -> torch.Tensor:
    """Routes as the routers of this rank need them, with padding filled.

    Args:
        microbatch: with the field ROUTED_EXPERTS.
        context: this rank.
        num_experts: E.

    Returns:
        int64 [n, L, K]; NOT_CAPTURED only where a real token has no captured route.
    """
    routes = router_order(microbatch.fields[ROUTED_EXPERTS], context).to(torch.int64)
    return fill_padding(
        routes, router_order(microbatch.padding_mask, context), num_experts=num_experts
    )


def fill_padding(routes: torch.Tensor, padding: torch.Tensor, *, num_experts: int) -> torch.Tensor:
    """Give the t-th padding position the experts (t*K + j) mod E, j < K, in every layer.

    Counting padding positions and not row positions keeps the load even when slots are padded at
    regular distances.

    >>> marked = torch.full((4, 1, 2), -1)
    >>> marked[1] = torch.tensor([[5, 0]])
    >>> fill_padding(marked, torch.tensor([True, False, True, True]), num_experts=6).tolist()
    [[[0, 1]], [[5, 0]], [[2, 3]], [[4, 5]]]

    Args:
        routes: int64 [n, L, K].
        padding: bool [n], True at padding.
        num_experts: E, at least K.

    Returns:
        int64 [n, L, K]; real positions as they were.
    """
    top_k = routes.shape[-1]
    ordinal = padding.cumsum(0) - 1
    spread = (ordinal[:, None] * top_k + torch.arange(top_k, device=routes.device)) % num_experts
    return torch.where(padding[:, None, None], spread[:, None, :], routes)
