"""From a plan and documents to packed rows: the one place where targets are shifted.

A document of n tokens takes n positions: position t predicts token t+1, the last one predicts
nothing. A document of row_length + 1 tokens takes row_length positions, and its last token is the
row's `final_label`. Nothing longer gets here: `LONGER_THAN_ROW` is decided on entry.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from megapack.errors import ContractError
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import PackLayout
from megapack.layout.runs import Int64, mask_of_runs
from megapack.layout.token_fields import TokenField, place
from megapack.packing.row_plan import RowPlan
from megapack.records.document import Document
from megapack.records.packed_row import PackedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """What all rows of a dataset have in common.

    Attributes:
        row_length: T.
        granularity: multiples of slots and row.
        pad_id: token id that padding positions hold.
    """

    row_length: int
    granularity: Granularity
    pad_id: int


def positions_of(num_tokens: Int64 | int, row_length: int) -> Int64:
    """Positions that documents take: n, or n - 1 when n is the row length + 1.

    Args:
        num_tokens: int [M], each in [1, row_length + 1].
        row_length: T.

    Returns:
        int64 [M].
    """
    return np.minimum(np.asarray(num_tokens, dtype=np.int64), row_length)


def build_row(documents: Sequence[Document], shape: RowShape) -> PackedRow:
    """Lay documents into one row.

    Args:
        documents: N documents, in segment order.
        shape: row length, multiples, pad id.

    Returns:
        The row; tokens of padding positions are `pad_id`.

    Raises:
        ContractError: the documents do not fit.
    """
    positions = positions_of(
        np.array([document.num_tokens for document in documents], dtype=np.int64), shape.row_length
    ).astype(np.int32)
    layout = PackLayout(
        row_length=shape.row_length, lengths=positions, granularity=shape.granularity
    )
    counts = positions.tolist()
    tokens = place(
        TokenField(name="tokens", dtype=np.int32, pad=shape.pad_id),
        [d.tokens[:count] for d, count in zip(documents, counts, strict=True)],
        layout,
    )
    runs = [
        d.target_runs - 1 + start
        for d, start in zip(documents, layout.slot_starts.tolist(), strict=True)
    ]
    return PackedRow(
        tokens=tokens,
        target_runs=np.concatenate(runs) if runs else np.zeros(0, np.int32),
        layout=layout,
        document_ids=tuple(document.document_id for document in documents),
        sources=tuple(document.source for document in documents),
        final_label=_final_label(documents, shape.row_length),
    )


def build_rows(
    plan: RowPlan, documents: Sequence[Document], shape: RowShape
) -> Iterator[PackedRow]:
    """Rows of a plan, in plan order."""
    for index in range(plan.num_rows):
        yield build_row([documents[i] for i in plan.row(index).tolist()], shape)


def _final_label(documents: Sequence[Document], row_length: int) -> int | None:
    """The label that no position holds as a token, when the row's document has T + 1 tokens."""
    if not documents or documents[-1].num_tokens <= row_length:
        return None
    last = documents[-1]
    if last.num_tokens > row_length + 1:
        raise ContractError(
            f"Document {last.document_id} has {last.num_tokens} tokens, expected at most "
            f"row_length + 1 = {row_length + 1}."
        )
    supervised = bool(mask_of_runs(last.target_runs, last.num_tokens)[-1])
    return int(last.tokens[-1]) if supervised else None
