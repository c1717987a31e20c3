"""`PackedRow` to `MicroBatch`: this rank's share of a row, and megatron-core's offsets.

The only file that builds PackedSeqParams. Its offsets are global and of two kinds that must not
be mixed: `cu_seqlens_q/kv` cumulate real lengths, the `_padded` ones are slot offsets that cover
the row to its end (`megapack.layout.tail`). Letters: T = row_length, N = segments.
"""

from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

from megapack.batch.microbatch import Attention, FullRowAttention, MicroBatch, ThdAttention
from megapack.layout.pack_layout import PackLayout
from megapack.layout.tail import covering_offsets
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow

if TYPE_CHECKING:
    from megatron.core.packed_seq_params import PackedSeqParams


def to_microbatch(row: PackedRow, context: ParallelContext) -> MicroBatch:
    """This rank's share of a row.

    Args:
        row: a packed row, several joined ones, or a filler row.
        context: gives the context parallel rank and the device.

    Returns:
        A MicroBatch whose tensors are copies on context.device.

    Raises:
        ConfigError: a slot or the row cannot be cut for this context parallel size.
    """
    attention = ThdAttention(
        layout=row.layout,
        cp_index=cp_index(row.layout, context),
        packed_seq_params=packed_seq_params(row.layout, device=context.device),
    )
    return assemble(row, attention, context)


def to_full_row_microbatch(row: PackedRow, context: ParallelContext) -> MicroBatch:
    """A row for a model that inserts media and cuts for context parallelism by itself.

    Tokens, positions and the model's inputs are the whole row; labels, masks and fields are this
    rank's share, because the model's outputs are.

    Args:
        row: a packed row, several joined ones, or a filler row.
        context: gives the context parallel rank and the device.

    Raises:
        ConfigError: a slot or the row cannot be cut for this context parallel size.
    """
    attention = FullRowAttention(
        layout=row.layout,
        cp_index=cp_index(row.layout, context),
        packed_seq_params=packed_seq_params(row.layout, device=context.device),
    )
    return assemble(row, attention, context)


def assemble(row: PackedRow, attention: Attention, context: ParallelContext) -> MicroBatch:
    """The microbatch of a row whose attention is known: one cut for each side, for all values.

    Args:
        row: the row.
        attention: how the model takes it.
        context: gives the device.
    """
    arrays = row.arrays()

    def put(values: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
        # Narrow to the device, wide on it.
        return torch.from_numpy(values).to(context.device).to(dtype)

    return MicroBatch(
        tokens=put(attention.model(arrays.tokens), torch.int64),
        labels=put(attention.local(arrays.labels), torch.int64),
        loss_mask=put(attention.local(arrays.loss_mask), torch.float32),
        position_ids=put(attention.model(arrays.position_ids), torch.int64),
        padding_mask=put(attention.local(row.layout.padding_mask()), torch.bool),
        row_mask=torch.tensor([float(row.layout.num_segments > 0)], device=context.device),
        attention=attention,
        row=row,
    )


def cp_index(layout: PackLayout, context: ParallelContext) -> torch.Tensor:
    """int64 [T/cp], CPU: row positions of this rank, in local order.

    Raises:
        ConfigError: a slot or the row cannot be cut for this context parallel size.
    """
    index = layout.cp_index(cp_size=context.sizes.cp, cp_rank=context.cp_rank)
    return torch.from_numpy(index)


def packed_seq_params(layout: PackLayout, *, device: torch.device) -> "PackedSeqParams":
    """megatron-core's view of a layout, offsets int32 on `device`.

    The offsets cover the row to its end. A filler row is one padding segment.
    """
    from megatron.core.packed_seq_params import PackedSeqParams

    covering = covering_offsets(layout)
    offsets = torch.from_numpy(covering.real).to(device)
    slots = torch.from_numpy(covering.padded).to(device)
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=offsets,
        cu_seqlens_kv=offsets,
        cu_seqlens_q_padded=slots,
        cu_seqlens_kv_padded=slots,
        max_seqlen_q=covering.longest,
        max_seqlen_kv=covering.longest,
        total_tokens=layout.row_length,
    )
