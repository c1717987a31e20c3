"""Rows as Megatron-Bridge reads packed Parquet (`GPTSFTPackedParquetDataset`).

`input_ids` holds whole documents end to end and `seq_start_id` where each begins. `loss_mask` has
one value an id and is *target-aligned*: value t says whether id t + 1 is learnt, and the value at
a document's last id says nothing. The reader makes n - 1 positions of n ids, so a document whose
slots must divide by m is padded to a multiple of m, plus one. It also takes the loss off every
position whose *input* is the end token; how many targets that costs is counted.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import polars as pl

from megapack.layout.runs import Bool, Int32
from megapack.records.packed_row import PackedRow
from megapack.records.plain_row import plain_row
from megapack.steps.exports.formats import ExportedFile, parquet_bytes
from megapack.store.ragged import list_series

_END_INPUTS = (
    "targets that Megatron-Bridge does not train: it masks positions whose input is the end token"
)


class BridgeExporter:
    """Writes packed Parquet for Megatron-Bridge."""

    suffix = ".idx.parquet"

    def __init__(self, *, multiple: int, pad_id: int, end_id: int | None) -> None:
        """Prepare.

        Args:
            multiple: what the positions of every document must divide by.
            pad_id: fills documents up to it; the reader expects its end token there.
            end_id: the reader's end token; None when it is not known, and nothing is counted.
        """
        self._multiple = multiple
        self._pad_id = pad_id
        self._end_id = end_id

    def file(self, rows: Sequence[PackedRow]) -> ExportedFile:
        """Rows as one Parquet file."""
        built = [self._row(row) for row in rows]
        columns = [
            list_series("input_ids", [ids for ids, _, _ in built]),
            list_series("loss_mask", [mask.astype(np.int32) for _, mask, _ in built]).cast(
                pl.List(pl.Int8)
            ),
            list_series("seq_start_id", [starts for _, _, starts in built]),
        ]
        notes: Counter[str] = Counter()
        if self._end_id is not None:
            notes[_END_INPUTS] = sum(
                int(np.count_nonzero(mask & (ids == self._end_id))) for ids, mask, _ in built
            )
        return ExportedFile(data=parquet_bytes(pl.DataFrame(columns)), notes=+notes)

    def _row(self, row: PackedRow) -> tuple[Int32, Bool, Int32]:
        """Ids and target-aligned mask of a row, and where its documents begin."""
        plain = plain_row(row)
        positions = np.maximum(plain.lengths.astype(np.int64) - 1, 1)
        stored = -(-positions // self._multiple) * self._multiple + 1
        starts = np.cumsum(stored) - stored
        ids = np.full(int(stored.sum()), self._pad_id, dtype=np.int32)
        learnt = np.zeros(ids.size, dtype=np.bool_)
        places = np.arange(plain.tokens.size) + np.repeat(starts - plain.starts, plain.lengths)
        ids[places] = plain.tokens
        learnt[places] = plain.supervised
        # No document begins with a learnt token, so the shift carries none across a boundary.
        return ids, np.append(learnt[1:], False), starts.astype(np.int32)
