"""`PackedRow` to and from frames of `megapack.packed_rows/2`.

A row is stored without its tail, and without all that its lengths and the dataset's multiples
say: offsets, positions, masks and labels are derived when it is read. Letter: T = row_length.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from megapack.errors import ContractError
from megapack.records.packed_row import PackedRow
from megapack.store.ragged import list_series
from megapack.store.row_table import RowTable
from megapack.store.schema import SCHEMAS, PackedInfo, SchemaId
from megapack.store.token_planes import split_tokens


def attention_cost(lengths: npt.ArrayLike) -> int:
    """Query-key pairs of causal attention inside each document of a row.

    >>> attention_cost([3, 2])
    9
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    return int((sizes * (sizes + 1) // 2).sum())


def rows_to_frame(rows: Sequence[PackedRow], *, info: PackedInfo) -> pl.DataFrame:
    """Rows as a frame, one record a row.

    Args:
        rows: rows of one dataset.
        info: what they share.

    Raises:
        ContractError: a row has another length or other multiples than `info` says.
    """
    for row in rows:
        _check_row(row, info)
    ids = [list(row.document_ids) for row in rows]
    sources = [list(row.sources) or [""] * row.layout.num_segments for row in rows]
    split = [
        split_tokens(row.tokens[: row.layout.num_slot_tokens], vocab_size=info.vocab_size)
        for row in rows
    ]
    columns = {
        "tokens": [low for low, _ in split],
        "tokens_high": [high for _, high in split],
        "target_runs": list_series("target_runs", [row.target_runs for row in rows]),
        "final_label": [row.final_label for row in rows],
        "lengths": list_series("lengths", [row.layout.lengths for row in rows]),
        "document_ids": ids,
        "sources": sources,
        "num_real_tokens": [row.num_real_tokens for row in rows],
        "num_target_tokens": [row.num_target_tokens for row in rows],
        "cost": [attention_cost(row.layout.lengths) for row in rows],
    }
    return pl.DataFrame(columns, schema=SCHEMAS[SchemaId.PACKED_ROWS])


def frame_to_rows(frame: pl.DataFrame, *, info: PackedInfo, where: str) -> Iterator[PackedRow]:
    """Rows of a frame, in its order.

    Args:
        frame: columns of `megapack.packed_rows/2`.
        info: what the rows share.
        where: file and row offset, for messages.

    Raises:
        ContractError: the columns are not those of the schema.
        DataError: a row contradicts itself; the message has its place.
    """
    table = RowTable(frame, info=info, where=where)
    return (table.row(at) for at in range(len(table)))


def _check_row(row: PackedRow, info: PackedInfo) -> None:
    found = row.layout
    if found.row_length != info.row_length or (
        found.granularity.segment != info.segment_granularity
        or found.granularity.row != info.row_granularity
    ):
        raise ContractError(
            f"PackedRow: expected row_length {info.row_length} and multiples "
            f"{info.segment_granularity}, {info.row_granularity}; found {found.row_length} and "
            f"{found.granularity.segment}, {found.granularity.row}."
        )
    if row.inner_labels:
        raise ContractError(
            f"PackedRow: expected no inner_labels in a stored row, found {len(row.inner_labels)}: "
            "rows that were joined for a microbatch are not stored."
        )
    if not np.all(row.tokens[found.num_slot_tokens :] == info.pad_id):
        raise ContractError(f"PackedRow: expected pad_id {info.pad_id} in the tail.")
