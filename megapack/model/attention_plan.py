"""Which queries of a rank see which keys: worked out once for a microbatch, used by every layer.

Works from the two offsets of a packed row alone. Padding (behind a document in its slot, and the
tail) is in no piece, so it costs nothing and its outputs are zero. Letters: T = row_length,
t = T/cp local positions, N = segments.
"""

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from megapack.layout.zigzag import zigzag_index

if TYPE_CHECKING:
    from megatron.core.packed_seq_params import PackedSeqParams


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """A stretch of local queries and the keys that they see.

    Attributes:
        query: local positions [start, end).
        key: row positions [start, end).
        mask: bool [queries, keys], True where a query sees a key; None for a square causal block.
    """

    query: tuple[int, int]
    key: tuple[int, int]
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionPlan:
    """What all layers of one microbatch share.

    Attributes:
        pieces: stretches with real queries, in local order.
        num_local: t, local positions; those that no piece covers get zero outputs.
        to_row: int64 [T], index that brings K|V of all cp ranks into row order; None with cp 1.
    """

    pieces: tuple[Piece, ...]
    num_local: int
    to_row: torch.Tensor | None


_PLANS: dict[int, tuple["weakref.ref[PackedSeqParams]", AttentionPlan]] = {}


def attention_plan(params: "PackedSeqParams", cp_size: int, cp_rank: int) -> AttentionPlan:
    """The plan of a microbatch, made at the first layer and kept as long as `params` lives."""
    key = id(params)
    entry = _PLANS.get(key)
    if entry is not None and entry[0]() is params:
        return entry[1]
    plan = make_plan(
        real=params.cu_seqlens_q,
        padded=params.cu_seqlens_q_padded,
        cp_size=cp_size,
        cp_rank=cp_rank,
    )
    _PLANS[key] = (weakref.ref(params, lambda _: _PLANS.pop(key, None)), plan)
    return plan


def make_plan(
    *, real: torch.Tensor, padded: torch.Tensor, cp_size: int, cp_rank: int
) -> AttentionPlan:
    """Pieces of one rank's share of a row.

    Args:
        real: int32 [N+1], cumulated real lengths; padding segments have length 0.
        padded: int32 [N+1], slot offsets that cover the row.
        cp_size: ranks that share the row.
        cp_rank: this rank.
    """
    device = padded.device
    slots, lengths = padded.tolist(), real.diff().tolist()
    pieces: list[Piece] = []
    chunk_count = 2 * cp_size if cp_size > 1 else 1
    own = (cp_rank, 2 * cp_size - 1 - cp_rank) if cp_size > 1 else (0,)
    local = 0
    for start, end, length in zip(slots[:-1], slots[1:], lengths, strict=True):
        size = (end - start) // chunk_count
        for chunk in own:
            queries = min(length - chunk * size, size)
            if queries > 0:
                seen = chunk * size + queries
                mask = None
                if chunk:
                    mask = torch.ones(queries, seen, dtype=torch.bool, device=device)
                    mask = mask.tril(seen - queries)
                pieces.append(
                    Piece(query=(local, local + queries), key=(start, start + seen), mask=mask)
                )
            local += size
    to_row = _row_index(slots, cp_size, device=device) if cp_size > 1 else None
    return AttentionPlan(pieces=tuple(pieces), num_local=local, to_row=to_row)


def _row_index(slots: list[int], cp_size: int, *, device: torch.device) -> torch.Tensor:
    """int64 [T]: where each row position stands in the cp ranks' shards laid end to end."""
    order = torch.cat(
        [
            torch.from_numpy(zigzag_index(slots, cp_size=cp_size, cp_rank=rank))
            for rank in range(cp_size)
        ]
    )
    index = torch.empty_like(order)
    index[order] = torch.arange(order.numel())
    return index.to(device)
