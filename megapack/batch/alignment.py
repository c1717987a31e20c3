"""An opt-in proof that routes are those of the tokens they stand beside.

`VerifiedRoutes` wraps the stage that attaches routes: it sends token identities (document,
position, valid) through the very same transformation and then compares tokens, labels, routes and
identities with the documents themselves, and the order of identities with the context parallel
cut, written out here a second time. Cost: host work of a few passes over each row, one copy from
the device a microbatch; for debugging and for the first steps of a run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from megapack.batch.microbatch import MicroBatch
from megapack.batch.routing import ROUTED_EXPERTS, Placed, RouteTable, carry, router_order
from megapack.errors import ContractError
from megapack.layout.pack_layout import IGNORE_INDEX, PackLayout
from megapack.layout.token_fields import unplace
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from megapack.records.routed_experts import NOT_CAPTURED

TOKEN_IDENTITY = "token_identity"
"""Name of the identities' field: int32 [..., 3] of (document, position in it, valid)."""

Carry = Callable[[MicroBatch, Placed], MicroBatch]
_NOBODY = (-1, -1, 0)


def token_identity(layout: PackLayout) -> npt.NDArray[np.int32]:
    """Who stands where in a row.

    Args:
        layout: geometry of the row.

    Returns:
        int32 [T, 3]: index of the document in the row, position in the document, 1; at padding
        -1, -1, 0.
    """
    identity = np.empty((layout.row_length, len(_NOBODY)), dtype=np.int32)
    identity[:] = _NOBODY
    for i, (start, length) in enumerate(
        zip(layout.slot_starts.tolist(), layout.lengths.tolist(), strict=True)
    ):
        identity[start : start + length, 0] = i
        identity[start : start + length, 1] = np.arange(length)
        identity[start : start + length, 2] = 1
    return identity


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerifiedRoutes:
    """A stage of `StepBatch.stages`: `AttachRoutes`, and a proof for each microbatch.

    Attributes:
        table: captured routes.
        context: this rank.
        carry: the transformation to watch.
        place: how the table's routes get into a row.
    """

    table: RouteTable
    context: ParallelContext
    carry: Carry = carry
    place: Callable[[RouteTable, PackedRow], npt.NDArray[np.int16]] = RouteTable.place

    def __call__(self, microbatch: MicroBatch) -> MicroBatch:
        """The microbatch with the fields ROUTED_EXPERTS and TOKEN_IDENTITY.

        Raises:
            ContractError: tokens, routes and identities do not belong together.
        """
        placed: Placed = {
            ROUTED_EXPERTS: self.place(self.table, microbatch.row),
            TOKEN_IDENTITY: token_identity(microbatch.row.layout),
        }
        carried = self.carry(microbatch, placed)
        verify_alignment(carried, self.table, self.context)
        return carried


def verify_alignment(microbatch: MicroBatch, table: RouteTable, context: ParallelContext) -> None:
    """Prove that a microbatch's tokens and routes belong to the identities it carries.

    Args:
        microbatch: with the fields ROUTED_EXPERTS and TOKEN_IDENTITY.
        table: where the routes came from.
        context: this rank.

    Raises:
        ContractError: at the first local position at which something is not where it belongs.
    """
    identity = _flat(microbatch, microbatch.fields[TOKEN_IDENTITY])
    _compare("identity", identity, _expected_identity(microbatch.row.layout, context))
    tokens, labels, routes = _belongings(microbatch.row, table, identity)
    real = identity[:, 2] == 1
    if microbatch.tokens.shape == microbatch.labels.shape:
        _compare("token", _flat(microbatch, microbatch.tokens)[real], tokens[real])
    _compare("label", _flat(microbatch, microbatch.labels), labels)
    _compare("padding mask", _flat(microbatch, microbatch.padding_mask), ~real)
    _compare("route", _flat(microbatch, microbatch.fields[ROUTED_EXPERTS]), routes)
    _compare(
        "identity at the routers",
        router_order(microbatch.fields[TOKEN_IDENTITY], context).cpu().numpy(),
        _at_routers(identity, microbatch.labels.shape[0], context),
    )


def _flat(microbatch: MicroBatch, value: torch.Tensor) -> npt.NDArray[Any]:
    """[positions, ...] on the host."""
    return value.reshape(microbatch.labels.numel(), *value.shape[2:]).cpu().numpy()


def _expected_identity(layout: PackLayout, context: ParallelContext) -> npt.NDArray[np.int32]:
    """The identities this cp rank must hold: of each stretch, chunk r and chunk 2*cp - 1 - r."""
    whole = token_identity(layout)
    cp, rank = context.sizes.cp, context.cp_rank
    if cp == 1:
        return whole
    edges = layout.cu_seqlens_padded.tolist()
    edges += [layout.row_length] if layout.tail_length else []
    held = []
    for start, end in pairwise(edges):
        chunk = (end - start) // (2 * cp)
        early, late = start + rank * chunk, end - (rank + 1) * chunk
        held += [whole[early : early + chunk], whole[late : late + chunk]]
    return np.concatenate(held)


def _belongings(
    row: PackedRow, table: RouteTable, identity: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int16]]:
    """The tokens, labels and routes that the documents themselves have for these identities."""
    shape = (len(identity), table.shape.num_layers, table.shape.top_k)
    tokens = np.zeros(len(identity), dtype=np.int32)
    labels = np.full(len(identity), IGNORE_INDEX, dtype=np.int64)
    routes = np.full(shape, NOT_CAPTURED, dtype=np.int16)
    own_tokens, own_labels = unplace(row.tokens, row.layout), unplace(row.labels(), row.layout)
    for i, document_id in enumerate(row.document_ids):
        here = np.flatnonzero(identity[:, 0] == i)
        tokens[here] = own_tokens[i][identity[here, 1]]
        labels[here] = own_labels[i][identity[here, 1]]
        if document_id in table.by_document:
            routes[here] = table.by_document[document_id].experts[identity[here, 1]]
    return tokens, labels, routes


def _at_routers(
    identity: npt.NDArray[np.int32], batch: int, context: ParallelContext
) -> npt.NDArray[np.int32]:
    """[B, S] in [S, B] order; under sequence parallelism this tp rank's equal stretch of it."""
    order = identity.reshape(batch, -1, len(_NOBODY)).swapaxes(0, 1).reshape(-1, len(_NOBODY))
    if not context.sizes.sequence_parallel:
        return order
    share = len(order) // context.sizes.tp
    return order[context.tp_rank * share : (context.tp_rank + 1) * share]


def _compare(what: str, found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    if found.shape != expected.shape:
        raise ContractError(
            f"verify_alignment: {what}: expected shape {expected.shape}, found {found.shape}."
        )
    differs = (found != expected).any(axis=tuple(range(1, found.ndim)))
    if differs.any():
        first = int(np.flatnonzero(differs)[0])
        raise ContractError(
            f"verify_alignment: {what}: local position {first}: expected "
            f"{expected[first].tolist()}, found {found[first].tolist()} ({int(differs.sum())} of "
            f"{len(found)} positions differ). A field was placed or cut unlike the tokens."
        )
