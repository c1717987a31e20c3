"""`PackedRow` to `MicroBatch`: this rank's share of a row, and megatron-core's offsets.

The only file that builds PackedSeqParams. Its offsets are global and of two kinds that must not
be mixed: `cu_seqlens_q/kv` cumulate real lengths, the `_padded` ones are slot offsets that cover
the row to its end (`megapack.layout.tail`). Letters: T = row_length, N = segments.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

from megapack.batch.fields import NO_FIELDS, RowFields, to_tensors
from megapack.batch.microbatch import FullRowAttention, MicroBatch, ThdAttention
from megapack.layout.pack_layout import PackLayout
from megapack.layout.row_arrays import RowArrays
from megapack.layout.tail import covering_offsets
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow

if TYPE_CHECKING:
    from megatron.core.packed_seq_params import PackedSeqParams

Cut = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


def to_microbatch(
    row: PackedRow, context: ParallelContext, fields: RowFields = NO_FIELDS
) -> MicroBatch:
    """This rank's share of a row.

    Args:
        row: a packed row, several joined ones, or a filler row.
        context: gives the context parallel rank and the device.
        fields: further values of the row; all are cut alike.

    Returns:
        A MicroBatch whose tensors are copies on context.device.

    Raises:
        ConfigError: a slot or the row cannot be cut for this context parallel size.
        ContractError: a field is not as long as the row.
    """
    fields.check(row)
    arrays = row.arrays()
    cut, index = local_cut(row.layout, context)
    return MicroBatch(
        tokens=put(cut(arrays.tokens), torch.int64, context),
        position_ids=put(cut(arrays.position_ids), torch.int64, context),
        **local_side(row, arrays, cut, context),
        row_mask=row_mask(row, context),
        attention=ThdAttention(
            layout=row.layout,
            cp_index=index,
            packed_seq_params=packed_seq_params(row.layout, device=context.device),
        ),
        row=row,
        fields=to_tensors(fields.local, cut, context.device),
        inputs={**to_tensors(fields.model, cut, context.device), **fields.media},
    )


def to_full_row_microbatch(
    row: PackedRow, context: ParallelContext, fields: RowFields = NO_FIELDS
) -> MicroBatch:
    """A row for a model that inserts media and cuts for context parallelism by itself.

    Tokens, positions and the model's inputs are the whole row; labels, masks and `fields` are this
    rank's share, because the model's outputs are.

    Args:
        row: a packed row, several joined ones, or a filler row.
        context: gives the context parallel rank and the device.
        fields: further values of the row.

    Raises:
        ConfigError: a slot or the row cannot be cut for this context parallel size.
        ContractError: a field is not as long as the row.
    """
    fields.check(row)
    arrays = row.arrays()
    cut, index = local_cut(row.layout, context)
    return MicroBatch(
        tokens=put(arrays.tokens[None], torch.int64, context),
        position_ids=put(arrays.position_ids[None], torch.int64, context),
        **local_side(row, arrays, cut, context),
        row_mask=row_mask(row, context),
        attention=FullRowAttention(
            layout=row.layout,
            cp_index=index,
            packed_seq_params=packed_seq_params(row.layout, device=context.device),
        ),
        row=row,
        fields=to_tensors(fields.local, cut, context.device),
        inputs={
            **to_tensors(fields.model, lambda values: values[None], context.device),
            **fields.media,
        },
    )


def local_cut(layout: PackLayout, context: ParallelContext) -> tuple[Cut, torch.Tensor]:
    """How this rank's share is taken out of row-ordered values, and its index.

    Returns:
        A function from [T, ...] to [1, T/cp, ...], and int64 [T/cp] on the host.

    Raises:
        ConfigError: a slot or the row cannot be cut for this context parallel size.
    """
    index = layout.cp_index(cp_size=context.sizes.cp, cp_rank=context.cp_rank)

    def cut(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # Without context parallelism the share is the row.
        mine: npt.NDArray[Any] = values if context.sizes.cp == 1 else values[index]
        return mine[None]

    return cut, torch.from_numpy(index)


def local_side(
    row: PackedRow, arrays: RowArrays, cut: Cut, context: ParallelContext
) -> dict[str, torch.Tensor]:
    """labels, loss_mask and padding_mask of this rank."""
    return {
        "labels": put(cut(arrays.labels), torch.int64, context),
        "loss_mask": put(cut(arrays.loss_mask), torch.float32, context),
        "padding_mask": put(cut(row.layout.padding_mask()), torch.bool, context),
    }


def put(values: npt.NDArray[Any], dtype: torch.dtype, context: ParallelContext) -> torch.Tensor:
    """Narrow to the device, wide on it."""
    return torch.from_numpy(values).to(context.device).to(dtype)


def row_mask(row: PackedRow, context: ParallelContext) -> torch.Tensor:
    """float32 [1]: 0 for a filler row."""
    return torch.tensor([float(row.layout.num_segments > 0)], device=context.device)


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
