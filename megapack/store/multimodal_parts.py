"""Rows of text and images to content-addressed parts, in row groups bounded in bytes.

pyarrow writes them, because forked data workers read them (`multimodal_reader`). Images are
compressed already: their column is stored as it is, all others with zstd. Equal rows make equal
parts.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from megapack.store.location import Location
from megapack.store.manifest import Part, PartKind
from megapack.store.multimodal_info import MultimodalInfo
from megapack.store.multimodal_table import PLANNING, ROW_SCHEMA, StoredRow, rows_to_table
from megapack.store.schema import SCHEMA_KEY, SchemaId
from megapack.store.writer import PART_PREFIX, put_once

GROUP_BYTES = 4 << 20
PART_BYTES = 128 << 20
_LEVEL = 3
_TOKEN_BYTES = 4
_ENCODED = "samples.list.element.encoded.list.element"
TOTALS = tuple(name for name in PLANNING if name != "epoch")
"""Columns whose sums a part and a version count, as `num_rows` does rows."""


class RowPart:
    """One part in the making.

    Args:
        info: what all rows share.
        group_bytes: a row group is closed when its rows hold so many bytes, or one row more.
    """

    def __init__(self, info: MultimodalInfo, *, group_bytes: int = GROUP_BYTES) -> None:
        self._group_bytes = group_bytes
        self._buffer = io.BytesIO()
        names = _leaves(ROW_SCHEMA)
        self._writer = pq.ParquetWriter(
            self._buffer,
            ROW_SCHEMA.with_metadata(info.metadata()),
            compression={name: "none" if name == _ENCODED else "zstd" for name in names},
            compression_level={name: _LEVEL for name in names if name != _ENCODED},
            use_dictionary=[name for name in names if name != _ENCODED],
            write_statistics=False,
        )
        self._group: list[StoredRow] = []
        self._held = 0
        self._counts = dict.fromkeys(TOTALS, 0)
        self.num_rows = 0
        self.num_bytes = 0

    def add(self, row: StoredRow) -> None:
        """Take one row.

        Raises:
            ContractError: a sample of it is not of one piece.
        """
        size = row.num_bytes + _TOKEN_BYTES * row.size.tokens
        self._group.append(row)
        self._held += size
        self.num_rows += 1
        self.num_bytes += size
        for name in TOTALS:
            own = len(row.laid) if name == "num_samples" else getattr(row.size, name)
            self._counts[name] += own
        if self._held >= self._group_bytes:
            self._flush()

    def close(self, location: Location) -> Part:
        """Write the part.

        Raises:
            StoreError: the store failed.
        """
        self._flush()
        self._writer.close()
        return _put(
            location,
            self._buffer.getvalue(),
            kind=PartKind.MULTIMODAL_ROWS,
            num_records=self.num_rows,
            counts=self._counts,
        )

    def _flush(self) -> None:
        if self._group:
            table = rows_to_table(self._group)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._group, self._held = [], 0


REJECT_SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("reading", pa.int32(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
    ]
)


def write_rejects(location: Location, records: Sequence[Mapping[str, object]]) -> Part:
    """Write the samples that were left out as one part of `REJECT_SCHEMA`.

    Raises:
        StoreError: the store failed.
    """
    buffer = io.BytesIO()
    metadata = {SCHEMA_KEY: SchemaId.MULTIMODAL_REJECTS.value}
    table = pa.Table.from_pylist(list(records), schema=REJECT_SCHEMA.with_metadata(metadata))
    pq.write_table(
        table, buffer, compression="zstd", compression_level=_LEVEL, write_statistics=False
    )
    return _put(
        location,
        buffer.getvalue(),
        kind=PartKind.MULTIMODAL_REJECTS,
        num_records=table.num_rows,
        counts={},
    )


def row_totals(parts: Sequence[Part]) -> dict[str, int]:
    """Totals of row parts, under the names that a manifest's counts have."""
    rows = [part for part in parts if part.kind is PartKind.MULTIMODAL_ROWS]
    totals = {name: sum(part.counts[name] for part in rows) for name in TOTALS}
    return {
        "num_rows": sum(part.num_records for part in rows),
        **{name if name.startswith("num_") else f"num_{name}": n for name, n in totals.items()},
    }


def _put(
    location: Location,
    data: bytes,
    *,
    kind: PartKind,
    num_records: int,
    counts: Mapping[str, int],
) -> Part:
    digest = hashlib.sha256(data).hexdigest()
    key = f"{PART_PREFIX}{digest}.parquet"
    put_once(location, key, data)
    return Part(
        key=key,
        size=len(data),
        sha256=digest,
        num_records=num_records,
        kind=kind,
        counts=dict(counts),
    )


def _leaves(schema: pa.Schema) -> list[str]:
    """Parquet paths of all leaf columns."""
    return [path for field in schema for path in _paths(field.type, field.name)]


def _paths(kind: pa.DataType, path: str) -> list[str]:
    if pa.types.is_list(kind):
        return _paths(kind.value_type, f"{path}.list.element")
    if pa.types.is_struct(kind):
        inner = [kind.field(at) for at in range(kind.num_fields)]
        return [leaf for one in inner for leaf in _paths(one.type, f"{path}.{one.name}")]
    return [path]
