"""What every export format offers: rows in, the bytes of one file out, and what got lost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from io import BytesIO
from typing import Protocol

import polars as pl

from megapack.records.packed_row import PackedRow

_GROUP_ROWS = 512


class ExportFormat(StrEnum):
    """Who is to read the export."""

    BRIDGE = "bridge"
    """Megatron-Bridge: packed Parquet of `input_ids`, `loss_mask`, `seq_start_id`."""
    PACKED_JSONL = "packed-jsonl"
    """NeMo-RL and Megatron-LM: conversations of a row as one JSON line, tokenized by the loader."""
    HF = "hf"
    """Hugging Face trainers: `input_ids`, `labels`, `position_ids`, `seq_lengths`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """One file of an export.

    Attributes:
        data: its bytes.
        notes: positions or documents that its reader will treat otherwise than megapack does, by
            a sentence that says how.
    """

    data: bytes
    notes: Counter[str] = field(default_factory=Counter)


class Exporter(Protocol):
    """Writes rows for one kind of reader."""

    @property
    def suffix(self) -> str:
        """End of the file names, with its dot."""

    def file(self, rows: Sequence[PackedRow]) -> ExportedFile:
        """Rows as one file, in their order.

        Raises:
            DataError: the format cannot hold a row.
        """


def parquet_bytes(frame: pl.DataFrame) -> bytes:
    """A frame as Parquet, in small row groups: readers of packed rows jump about in them."""
    buffer = BytesIO()
    frame.write_parquet(buffer, compression="zstd", row_group_size=_GROUP_ROWS)
    return buffer.getvalue()
