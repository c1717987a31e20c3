"""Streaming writers: records arrive one by one, parts leave when they are big enough.

Memory is bounded by one part and its encoded copy. Where parts are cut depends on the records
alone, so that the same records make the same parts.
"""

from collections.abc import Iterable

from megapack.errors import ContractError
from megapack.records.packed_row import PackedRow
from megapack.store.location import Location
from megapack.store.manifest import Part, PartKind, Split
from megapack.store.row_frames import rows_to_frame
from megapack.store.schema import PackedInfo, SchemaId, file_metadata
from megapack.store.writer import PartForm, write_part

ROW_PART_BYTES = 128 << 20
_TOKEN_BYTES = 4
ROW_LEVEL = 6


class RowSink:
    """Writes the rows of one split as parts of about 32M tokens, cut at whole row groups."""

    def __init__(
        self,
        location: Location,
        *,
        info: PackedInfo,
        split: Split,
        part_bytes: int = ROW_PART_BYTES,
    ) -> None:
        """Begin.

        Args:
            location: the store.
            info: what all rows share.
            split: side of the split.
            part_bytes: raw token bytes of a part; stored it takes about a fifth.
        """
        self._location = location
        self._info = info
        self._split = split
        groups = max(1, part_bytes // (info.group_rows * info.row_length * _TOKEN_BYTES))
        self._part_rows = groups * info.group_rows
        self._rows: list[PackedRow] = []
        self._parts: list[Part] = []

    def add(self, row: PackedRow) -> None:
        """Take one row.

        Raises:
            ContractError: the row is not of this dataset.
            StoreError: a part was due and could not be written.
        """
        self._rows.append(row)
        if len(self._rows) == self._part_rows:
            self._flush()

    def close(self) -> tuple[Part, ...]:
        """Write what is left; the parts, in the order of the rows."""
        if self._rows:
            self._flush()
        return tuple(self._parts)

    def _flush(self) -> None:
        frame = rows_to_frame(self._rows, info=self._info)
        form = PartForm(
            schema=SchemaId.PACKED_ROWS,
            kind=PartKind.ROWS,
            split=self._split,
            metadata=file_metadata(SchemaId.PACKED_ROWS, self._info),
            group_records=self._info.group_rows,
            level=ROW_LEVEL,
        )
        counts = {
            name: int(frame[name].cast(int).sum())
            for name in ("num_real_tokens", "num_target_tokens")
        }
        counts["num_documents"] = sum(row.layout.num_segments for row in self._rows)
        self._parts.append(write_part(self._location, frame, form=form, counts=counts))
        self._rows = []


def row_counts(parts: Iterable[Part]) -> dict[str, int]:
    """Totals of row parts, under the names that a dataset's manifest needs.

    Raises:
        ContractError: a part holds no rows.
    """
    totals = {"num_rows": 0, "num_real_tokens": 0, "num_target_tokens": 0}
    for part in parts:
        if part.kind is not PartKind.ROWS:
            raise ContractError(f"part {part.key}: expected rows, found {part.kind.value}.")
        totals["num_rows"] += part.num_records
        for name in ("num_real_tokens", "num_target_tokens"):
            totals[name] += part.counts[name]
    return totals
