"""Content-addressed parts: `parts/<sha256>.parquet`, put once.

Equal records make equal bytes, on any machine and with any number of threads, so that versions
share parts. A part may be deleted by garbage collection when it is a day old and no version names
it; a writer therefore uploads a part anew when it finds one older than half of that.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from megapack.store.location import Location
from megapack.store.manifest import Part, PartKind, Split
from megapack.store.schema import SchemaId, check_frame

PART_PREFIX = "parts/"
COLLECT_AFTER_S = 24 * 3600.0
REFRESH_AFTER_S = COLLECT_AFTER_S / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PartForm:
    """How a frame becomes a part.

    Attributes:
        schema: id of its schema, checked against the frame; None for a table of another owner.
        kind: what it holds.
        split: side of the split.
        metadata: key-value pairs in the file's footer.
        group_records: records of one row group.
        compression: `zstd` or `uncompressed`.
        level: zstd level.
    """

    schema: SchemaId | None
    kind: PartKind
    split: Split = Split.NONE
    metadata: Mapping[str, str] = field(default_factory=dict)
    group_records: int
    compression: str = "zstd"
    level: int = 3


def write_part(
    location: Location,
    frame: pl.DataFrame,
    *,
    form: PartForm,
    counts: Mapping[str, int] | None = None,
) -> Part:
    """Write a frame as one part.

    Args:
        location: the store.
        frame: its records.
        form: how.
        counts: further counts to record.

    Returns:
        The part, for a manifest.

    Raises:
        ContractError: the frame's columns are not those of the schema.
        StoreError: the store failed.
    """
    data = encode(frame, form=form)
    digest = hashlib.sha256(data).hexdigest()
    key = f"{PART_PREFIX}{digest}.parquet"
    put_once(location, key, data)
    return Part(
        key=key,
        size=len(data),
        sha256=digest,
        num_records=frame.height,
        kind=form.kind,
        split=form.split,
        counts=dict(counts or {}),
    )


def encode(frame: pl.DataFrame, *, form: PartForm) -> bytes:
    """The bytes of a part.

    Raises:
        ContractError: the frame's columns are not those of the schema.
    """
    if form.schema is not None:
        check_frame(frame, form.schema)
    buffer = io.BytesIO()
    frame.rechunk().write_parquet(
        buffer,
        compression="zstd" if form.compression == "zstd" else "uncompressed",
        compression_level=form.level if form.compression == "zstd" else None,
        # Row groups are cut by number of records; polars' own thresholds do not come into it.
        row_group_size=form.group_records,
        statistics=False,
        metadata=dict(sorted(form.metadata.items())),
    )
    return buffer.getvalue()


def put_once(location: Location, key: str, data: bytes) -> None:
    """Write an object whose key is its digest, unless it stands there unaltered and will stay.

    Raises:
        StoreError: the store failed.
    """
    found = location.stat(key)
    stays = found is not None and found.size == len(data) and found.age_s <= REFRESH_AFTER_S
    if not stays or location.get(key) != data:
        location.put(key, data)
