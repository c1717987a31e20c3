"""Dense `[B, S]` microbatches: one document a row, masks and positions instead of offsets.

The rectangle is a `PackedRow` of B slots of S positions, so heads, extraction and metrics work as
on packed rows, and what pads a document to S is cut wherever documents are taken out. Costs
B * S positions whatever the documents hold, and a mask of S * S. Letters: B rows, S width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from megapack.batch.documents import PositionedDocument, lay_out, lengths_of
from megapack.batch.microbatch import DenseAttention, MicroBatch
from megapack.batch.thd import assemble
from megapack.errors import ConfigError, ContractError
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import PackLayout
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LtorMasks:
    """Masks and positions of a rectangle that is read from left to right.

    Attributes:
        attention_mask: bool [B, 1, S, S], True where a query may not see a key.
        position_ids: int64 [B, S].
        loss_mask: float32 [B, S], 0 behind the last document of a row.
    """

    attention_mask: torch.Tensor
    position_ids: torch.Tensor
    loss_mask: torch.Tensor


def ltor_masks_and_position_ids(
    lengths: Sequence[Sequence[int]], width: int, *, device: torch.device | None = None
) -> LtorMasks:
    """What megatron's `get_ltor_masks_and_position_ids` gives with all its resets on.

    Boundaries are lengths, where megatron looks for an end-of-document id among the tokens; what
    stands behind the last document is one more document.

    Args:
        lengths: of each row, the lengths of its documents, in order; at most `width` together.
        width: S.
        device: where to.

    Raises:
        ContractError: a row's documents are longer than the width.
    """
    for i, row in enumerate(lengths):
        if sum(row) > width:
            raise ContractError(
                f"ltor_masks_and_position_ids: row {i}: expected documents of at most {width} "
                f"positions together, found {sum(row)}."
            )
    places = torch.arange(width, device=device)
    owner = torch.stack([_owners(row, width) for row in lengths]).to(places.device)
    first = torch.stack([_starts(row, width) for row in lengths]).to(places.device)
    hidden = (owner[:, :, None] != owner[:, None, :]) | (places[None, :] > places[:, None])
    count = torch.tensor([len(row) for row in lengths], device=places.device)
    return LtorMasks(
        attention_mask=hidden[:, None],
        position_ids=places - first,
        loss_mask=(owner < count[:, None]).float(),
    )


def dense_row(
    documents: Sequence[PositionedDocument], *, rows: int, width: int, pad_id: int = 0
) -> PackedRow:
    """The rectangle of some documents, laid end to end.

    Args:
        documents: at most `rows`, each of at most `width` positions.
        rows: B; rows without a document are filler.
        width: S.
        pad_id: token at padding positions.

    Raises:
        ContractError: the documents do not fit.
    """
    lengths = lengths_of(documents)
    if len(documents) > rows or int(lengths.max(initial=0)) > width:
        raise ContractError(
            f"dense_row: expected at most {rows} documents of at most {width} positions, found "
            f"{len(documents)} of up to {int(lengths.max(initial=0))}."
        )
    layout = PackLayout(
        row_length=rows * width,
        lengths=lengths,
        granularity=Granularity(segment=width, row=width, reasons=(f"dense width {width}",)),
    )
    return lay_out(documents, layout, pad_id=pad_id)


def to_dense_microbatch(row: PackedRow, context: ParallelContext) -> MicroBatch:
    """The microbatch of a rectangle.

    Args:
        row: from `dense_row`.
        context: gives the device; its cp must be 1.

    Raises:
        ConfigError: cp is larger than 1, or the width does not divide over tp.
    """
    width = row.layout.granularity.segment
    check_dense(context, width=width)
    rows = row.layout.row_length // width
    lengths = np.zeros(rows, dtype=np.int32)
    lengths[: row.layout.num_segments] = row.layout.lengths
    places = torch.arange(width, device=context.device)
    attention = DenseAttention(
        layout=row.layout,
        attention_mask=(places[None, :] > places[:, None]).expand(rows, 1, width, width),
        lengths=torch.from_numpy(lengths),
    )
    return replace(
        assemble(row, attention, context),
        position_ids=places.expand(rows, width),
        row_mask=torch.from_numpy(lengths > 0).to(context.device).float(),
    )


def check_dense(context: ParallelContext, *, width: int) -> None:
    """Refuse a layout that dense batches cannot run at.

    Raises:
        ConfigError: cp is larger than 1, or the width does not divide over tp.
    """
    if context.sizes.cp > 1:
        raise ConfigError(
            f"dense batches at cp {context.sizes.cp}: expected cp 1. Context parallelism cuts "
            "rows at document boundaries, which a dense batch does not have. Use packed rows, or "
            "cp 1."
        )
    if context.sizes.sequence_parallel and width % context.sizes.tp:
        raise ConfigError(
            f"dense batch of width {width}: expected a multiple of tp {context.sizes.tp}, over "
            "which sequence parallelism cuts it. Pad the width to a multiple of tp."
        )


def _owners(lengths: Sequence[int], width: int) -> torch.Tensor:
    """int64 [S]: number of the document at each position; the rest of the row is one more."""
    counts = torch.tensor([*lengths, width - sum(lengths)])
    return torch.repeat_interleave(torch.arange(counts.numel()), counts)


def _starts(lengths: Sequence[int], width: int) -> torch.Tensor:
    """int64 [S]: position at which the document of each position begins."""
    counts = torch.tensor([*lengths, width - sum(lengths)])
    return torch.repeat_interleave(counts.cumsum(0) - counts, counts)
