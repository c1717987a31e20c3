"""`PackedDotProductAttention`: causal attention inside each document of a THD row, any device.

Each document is one call of torch's scaled_dot_product_attention, so no mask over the row exists
and a neighbour cannot leak in: not even bitwise. Padding and tail are not computed; their outputs
are zero. Context parallelism costs one gather of K|V a layer (and its reduce-scatter backward):
each rank then attends with its two zigzag chunks of every document to what precedes them.

Indices and masks are made once for a microbatch and shared by all layers. Letters: t = T/cp local
positions, c = chunk length, h and g = query and key/value heads of this rank, d = head size.
"""

import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule

from megapack.errors import ConfigError, ContractError


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


class PackedDotProductAttention(MegatronModule):  # type: ignore[misc]
    """Core attention for megatron-core's SelfAttention. Constructor arguments are upstream's.

    Raises:
        ConfigError: attention dropout is on (its draws would depend on the packing), or the model
            asks for something this attention does not compute.
    """

    def __init__(  # noqa: PLR0913 - megatron-core calls it
        self,
        config: Any,  # noqa: ANN401 - upstream type
        layer_number: int,
        attn_mask_type: Any,  # noqa: ANN401, ARG002 - upstream type
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,  # noqa: ARG002 - upstream's choice of exchange
        pg_collection: Any = None,  # noqa: ANN401 - upstream type
    ) -> None:
        super().__init__(config=config)
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        unsupported = {
            "attention_dropout": dropout != 0.0,
            "window_size": config.window_size is not None,
            "softmax_type": config.softmax_type != "vanilla",
            "attention_type": attention_type != "self",
        }
        if any(unsupported.values()):
            names = [name for name, found in unsupported.items() if found]
            raise ConfigError(
                "PackedDotProductAttention: expected plain causal self-attention without dropout, "
                f"found settings of {', '.join(names)} in layer {layer_number}. Use the te backend."
            )
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["cp"])
        self.cp_group = groups.cp
        self.scale = 1.0 / math.sqrt(config.kv_channels) if softmax_scale is None else softmax_scale

    def forward(  # noqa: PLR0913 - megatron-core calls it
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,  # noqa: ARG002 - boundaries say it all
        attn_mask_type: Any = None,  # noqa: ANN401, ARG002 - upstream type
        attention_bias: torch.Tensor | None = None,  # noqa: ARG002 - never set by SelfAttention here
        packed_seq_params: PackedSeqParams | None = None,
    ) -> torch.Tensor:
        """Collective over cp_group. Attend within documents.

        Args:
            query: [t, h, d], positions already rotated.
            key: [t, g, d].
            value: [t, g, d].
            attention_mask: not read.
            attn_mask_type: not read.
            attention_bias: not read.
            packed_seq_params: boundaries of the row; the same object in every layer.

        Returns:
            [t, h * d], zero at padding.

        Raises:
            ContractError: there are no boundaries.
        """
        if packed_seq_params is None:
            raise ContractError(
                "PackedDotProductAttention: expected packed_seq_params, found None: a pipeline "
                "stage that lost them would attend across documents."
            )
        plan = attention_plan(packed_seq_params, self.cp_group.size(), self.cp_group.rank())
        local = (query, key, value)
        if plan.to_row is not None:
            both = torch.cat((key, value), dim=-1)
            both = gather_from_sequence_parallel_region(both, group=self.cp_group)[plan.to_row]
            key, value = both.split((key.shape[-1], value.shape[-1]), dim=-1)
            local = (query, both, both)
        outputs = []
        done = 0
        for piece in plan.pieces:
            start, end = piece.query
            if start > done:
                outputs.append(query.new_zeros(start - done, *query.shape[1:]))
            outputs.append(self._attend(query, key, value, piece))
            done = end
        if done < plan.num_local:
            outputs.append(query.new_zeros(plan.num_local - done, *query.shape[1:]))
        out = torch.cat(outputs).flatten(1)
        return out if plan.pieces else out + _anchor(*local)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, piece: Piece
    ) -> torch.Tensor:
        """[queries, h, d] of one piece."""
        q = query[slice(*piece.query)].transpose(0, 1)[None]
        k = key[slice(*piece.key)].transpose(0, 1)[None]
        v = value[slice(*piece.key)].transpose(0, 1)[None]
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=piece.mask,
            is_causal=piece.mask is None,
            scale=self.scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)


def _anchor(*tensors: torch.Tensor) -> torch.Tensor:
    """A zero that depends on the tensors.

    A rank that holds only padding must still take part in the backward of the gather, and its
    parameters must still report a gradient, or the other ranks wait for ever.
    """
    return torch.stack([tensor.sum() * 0.0 for tensor in tensors]).sum()


_PLANS: dict[int, tuple["weakref.ref[PackedSeqParams]", AttentionPlan]] = {}


def attention_plan(params: PackedSeqParams, cp_size: int, cp_rank: int) -> AttentionPlan:
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
    from megapack.layout.zigzag import zigzag_index

    order = torch.cat(
        [
            torch.from_numpy(zigzag_index(slots, cp_size=cp_size, cp_rank=rank))
            for rank in range(cp_size)
        ]
    )
    index = torch.empty_like(order)
    index[order] = torch.arange(order.numel())
    return index.to(device)
