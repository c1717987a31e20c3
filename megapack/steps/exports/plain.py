"""Rows as plain Hugging Face columns: documents end to end, without padding.

`labels` are the ids themselves, -100 where not supervised: the model shifts them. The first id of
a document is never a label, so nothing is learnt across a boundary. `position_ids` restart in
every document and `seq_lengths` (TRL's name) are the documents' lengths. There is no
`attention_mask`: no position is padding, and a mask of ones would make attention run across
documents where boundaries are taken from the positions.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from megapack.records.packed_row import PackedRow
from megapack.records.plain_row import plain_row
from megapack.steps.exports.formats import ExportedFile, parquet_bytes
from megapack.store.ragged import list_series


class PlainExporter:
    """Writes Parquet that `datasets` and polars read."""

    suffix = ".parquet"

    def file(self, rows: Sequence[PackedRow]) -> ExportedFile:
        """Rows as one Parquet file."""
        plain = [plain_row(row) for row in rows]
        frame = pl.DataFrame(
            [
                list_series("input_ids", [one.tokens for one in plain]),
                list_series("labels", [one.labels().astype(np.int32) for one in plain]),
                list_series("position_ids", [one.position_ids().astype(np.int32) for one in plain]),
                list_series("seq_lengths", [one.lengths for one in plain]),
            ]
        )
        return ExportedFile(data=parquet_bytes(frame))
