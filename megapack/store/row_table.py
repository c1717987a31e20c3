"""`RowTable`: rows of one frame, checked together and decoded one at a time.

What a row's numbers must satisfy is checked over all rows at once, in a few passes over flat
arrays; a row is then decoded in about 2 ns a position and nothing is checked twice. Where a row is
damaged, the table checks each row when it is asked for, so that the sound ones can still be read
and the message names the damaged one.
"""

from typing import Any

import numpy as np
import polars as pl

from megapack.errors import DataError, MegapackError
from megapack.layout.pack_layout import PackLayout, padded_lengths
from megapack.layout.runs import Int32, Int64
from megapack.records.packed_row import PackedRow
from megapack.store.ragged import flat_of, offsets_of
from megapack.store.schema import PackedInfo, SchemaId, check_frame
from megapack.store.token_planes import join_tokens

_NAMED = ("tokens", "tokens_high", "document_ids", "sources", "final_label")


class RowTable:
    """Rows of a frame, each decoded when it is asked for."""

    def __init__(self, frame: pl.DataFrame, *, info: PackedInfo, where: str) -> None:
        """Take the columns apart; no token is touched yet.

        Args:
            frame: columns of `megapack.packed_rows/2`.
            info: what the rows share.
            where: file and row offset, for messages.

        Raises:
            ContractError: the columns are not those of the schema.
        """
        check_frame(frame, SchemaId.PACKED_ROWS)
        self._info = info
        self._where = where
        # The numbers are read flat; a record of the rest is cheap to ask for.
        self._named = frame.select(_NAMED)
        self._lengths = _Lists(frame["lengths"])
        self._runs = _Lists(frame["target_runs"])
        self._slots = padded_lengths(self._lengths.values, info.segment_granularity)
        self._slots.flags.writeable = False
        self._sound = self._all_sound(frame)

    def __len__(self) -> int:
        return self._named.height

    def row(self, at: int) -> PackedRow:
        """One row.

        Raises:
            DataError: it contradicts itself; the message has its place.
        """
        low, high, ids, sources, final_label = self._named.row(at)
        try:
            layout = self._layout(at)
            fields: dict[str, Any] = {
                "tokens": _with_tail(low, high, layout, self._info.pad_id),
                "target_runs": self._runs.record(at),
                "layout": layout,
                "final_label": final_label,
            }
            if self._sound:
                return PackedRow.trusted(**fields, names=(tuple(ids), tuple(sources)))
            return PackedRow(**fields, document_ids=tuple(ids), sources=tuple(sources))
        except (MegapackError, ValueError) as error:
            raise DataError(
                f"{self._where}, row {at}: the stored row is damaged: {error}"
            ) from error

    def _layout(self, at: int) -> PackLayout:
        info = self._info
        if not self._sound:
            return PackLayout(
                row_length=info.row_length,
                lengths=self._lengths.record(at),
                granularity=info.granularity,
            )
        slots = self._slots[self._lengths.bounds(at)]
        return PackLayout.trusted(
            row_length=info.row_length,
            lengths=self._lengths.record(at),
            granularity=self._granularity,
            slots=slots,
            offsets=offsets_of(slots),
        )

    def _all_sound(self, frame: pl.DataFrame) -> bool:
        """Whether all rows satisfy what `PackLayout` and `PackedRow` check one by one."""
        self._granularity = self._info.granularity
        counts = self._lengths.counts
        named = frame.select(
            pl.col("document_ids").list.len().alias("ids"),
            pl.col("sources").list.len().alias("sources"),
        )
        return (
            bool((self._lengths.values >= 1).all())
            and bool((named["ids"].to_numpy() == counts).all())
            and bool((named["sources"].to_numpy() == counts).all())
            and self._slots_fit()
            and self._runs_ordered()
            and self._runs_inside(frame["final_label"].is_not_null().to_numpy())
        )

    def _slots_fit(self) -> bool:
        return bool((self._lengths.sums(self._slots) <= self._info.row_length).all())

    def _runs_ordered(self) -> bool:
        """Every row has pairs of strictly increasing edges inside [0, T]."""
        edges, owners = self._runs.values, self._runs.owners
        rising = (edges[1:] > edges[:-1]) | (owners[1:] != owners[:-1])
        inside = bool(((edges >= 0) & (edges <= self._info.row_length)).all())
        return bool(rising.all()) and inside and not bool((self._runs.counts % 2).any())

    def _runs_inside(self, has_final: "np.ndarray[Any, np.dtype[np.bool_]]") -> bool:
        """No run reaches the last real position of a segment, or the next one.

        Rows are laid end to end, each on T + 1 positions, so that one search finds the segment
        of every run.
        """
        stride = self._info.row_length + 1
        owners = self._lengths.owners
        begins = offsets_of(self._slots)
        starts = begins[:-1] - begins[self._lengths.offsets[owners]]
        last = starts + self._lengths.values - 1
        last += has_final[owners] & (last == self._info.row_length - 1)
        if not last.size:
            return self._runs.values.size == 0
        row_of_run = self._runs.owners[0::2]
        placed = row_of_run * stride + self._runs.values[0::2]
        segment = np.searchsorted(owners * stride + starts, placed, side="right") - 1
        if (segment < 0).any() or (owners[segment] != row_of_run).any():
            return False
        return bool((self._runs.values[1::2] <= last[segment]).all())


class _Lists:
    """A List(Int32) column as flat read-only values.

    Attributes:
        values: int32, of all records one after another.
        offsets: int64 [records + 1].
        counts: int64 [records].
        owners: int64, record of each value.
    """

    def __init__(self, column: pl.Series) -> None:
        self.values: Int32
        self.values, self.offsets = flat_of(column)
        self.values.flags.writeable = False
        self.counts: Int64 = self.offsets[1:] - self.offsets[:-1]
        self.owners: Int64 = np.repeat(np.arange(self.counts.size, dtype=np.int64), self.counts)

    def bounds(self, at: int) -> slice:
        """Where a record's values stand."""
        return slice(int(self.offsets[at]), int(self.offsets[at + 1]))

    def record(self, at: int) -> Int32:
        """int32 [length]: a read-only view."""
        return self.values[self.bounds(at)]

    def sums(self, values: Int32) -> Int64:
        """int64 [records]: sum over each record of other values with the same offsets."""
        total = offsets_of(values)
        return total[self.offsets[1:]] - total[self.offsets[:-1]]


def _with_tail(low: bytes, high: bytes, layout: PackLayout, pad_id: int) -> Int32:
    row: Int32 = np.empty(layout.row_length, dtype=np.int32)
    used = layout.num_slot_tokens
    join_tokens(low, high, out=row[:used])
    row[used:] = pad_id
    row.flags.writeable = False
    return row
