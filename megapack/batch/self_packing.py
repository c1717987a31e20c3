"""Microbatches for models that pack and cut for context parallelism by themselves.

Such a model takes a rectangle and a mask, packs each item's valid tokens into slots of its own
multiple and keeps its zigzag share; its outputs come back packed and cp-local. The row must have
slots of that multiple, so that the packed view here is the one that the model makes. A fixed
length is reached by growing the last item to the row's end: valid to the model, masked at the
loss, and cut where documents are taken out. Letters: B items, S width, T positions of the row.
"""

from dataclasses import replace

import numpy as np
import torch

from megapack.batch.microbatch import MicroBatch, SelfPackedAttention
from megapack.batch.thd import assemble, cp_index, packed_seq_params
from megapack.layout.pack_layout import PackLayout
from megapack.layout.runs import Int64, locked
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow


def grow_last(layout: PackLayout) -> PackLayout:
    """The layout with its tail given to the last slot.

    Real lengths stay, so nothing that is taken out of a row changes. A filler row is returned as
    it is.
    """
    if layout.tail_length == 0 or layout.num_segments == 0:
        return layout
    offsets = layout.cu_seqlens_padded.astype(np.int64)
    offsets[-1] = layout.row_length
    return PackLayout.trusted(
        row_length=layout.row_length,
        lengths=layout.lengths,
        granularity=layout.granularity,
        slots=locked(np.diff(offsets)),
        offsets=offsets,
    )


def to_self_packed_microbatch(row: PackedRow, context: ParallelContext) -> MicroBatch:
    """A rectangle of a row's documents, and the packed view of it for the loss.

    Args:
        row: a packed row whose slots have the model's multiple, or a filler row, which becomes
            one item of padding.
        context: gives the context parallel rank and the device.

    Raises:
        ConfigError: a slot or the row cannot be cut for this context parallel size.
    """
    row = PackedRow.trusted(
        tokens=row.tokens,
        target_runs=row.target_runs,
        layout=grow_last(row.layout),
        names=(row.document_ids, row.sources),
        final_label=row.final_label,
        inner_labels=row.inner_labels,
    )
    valid, width = _valid_lengths(row.layout)
    places = np.arange(width)
    attention = SelfPackedAttention(
        layout=row.layout,
        attention_mask=torch.from_numpy(places < valid[:, None]).to(context.device),
        cp_index=cp_index(row.layout, context),
        packed_seq_params=packed_seq_params(row.layout, device=context.device),
    )
    positions = torch.from_numpy(places).to(context.device).expand(valid.size, width)
    return replace(assemble(row, attention, context), position_ids=positions)


def _valid_lengths(layout: PackLayout) -> tuple[Int64, int]:
    """How much of each item the model sees, and the width of the rectangle.

    A model packs what the mask says, so the last item must be seen up to its slot's end if it was
    grown beyond its own multiple.
    """
    if layout.num_segments == 0:
        return np.array([layout.row_length], dtype=np.int64), layout.row_length
    slots = layout.padded_lengths.astype(np.int64)
    valid = layout.lengths.astype(np.int64)
    step = layout.granularity.segment
    grown = -(-valid // step) * step < slots
    return np.where(grown, slots, valid), int(slots.max())
