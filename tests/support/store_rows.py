"""Small packed datasets for tests of the store."""

from collections.abc import Sequence

import numpy as np

from megapack.layout.pack_layout import PackLayout
from megapack.records.packed_row import PackedRow
from megapack.store.location import Location
from megapack.store.manifest import Contents, Manifest, Part, PartKind, Split
from megapack.store.row_frames import rows_to_frame
from megapack.store.schema import PackedInfo, SchemaId, file_metadata
from megapack.store.sinks import row_counts
from megapack.store.writer import PartForm, write_part

INFO = PackedInfo(
    row_length=16,
    segment_granularity=4,
    row_granularity=4,
    pad_id=0,
    vocab_size=1_000_000,
    tokenizer_digest="t" * 8,
    format="identity",
)


def make_row(number: int, *, lengths: Sequence[int] = (5, 3), info: PackedInfo = INFO) -> PackedRow:
    """A row whose first token is its number; targets are positions 1 and 2 of segment 0."""
    layout = PackLayout(
        row_length=info.row_length,
        lengths=np.array(lengths, dtype=np.int32),
        granularity=info.granularity,
    )
    tokens = np.full(info.row_length, info.pad_id, dtype=np.int32)
    for start, length in zip(layout.slot_starts.tolist(), lengths, strict=True):
        tokens[start : start + length] = np.arange(1, length + 1)
    tokens[0] = number
    return PackedRow(
        tokens=tokens,
        target_runs=np.array([1, 3] if lengths and lengths[0] > 3 else [], dtype=np.int32),
        layout=layout,
        document_ids=tuple(f"{number}-{i}" for i in range(len(lengths))),
        sources=tuple("s" for _ in lengths),
    )


def put_rows(
    location: Location,
    numbers: Sequence[int],
    *,
    split: Split = Split.TRAIN,
    group_records: int = 4,
    info: PackedInfo = INFO,
) -> Part:
    """One part with these rows, in row groups of any size."""
    frame = rows_to_frame([make_row(number, info=info) for number in numbers], info=info)
    form = PartForm(
        schema=SchemaId.PACKED_ROWS,
        kind=PartKind.ROWS,
        split=split,
        metadata=file_metadata(SchemaId.PACKED_ROWS, info),
        group_records=group_records,
    )
    counts = {
        name: int(frame[name].cast(int).sum()) for name in ("num_real_tokens", "num_target_tokens")
    }
    return write_part(location, frame, form=form, counts=counts)


def dataset_manifest(
    parts: Sequence[Part], *, address: str = "", info: PackedInfo = INFO
) -> Manifest:
    """Manifest of a packed dataset of these parts."""
    return Contents(
        schema_id=SchemaId.PACKED_ROWS,
        kind="dataset",
        address=address,
        parts=parts,
        counts=row_counts(parts),
        packed=info,
    ).manifest()


def same_row(left: PackedRow, right: PackedRow) -> bool:
    """Equality of rows, arrays by value."""
    return (
        np.array_equal(left.tokens, right.tokens)
        and np.array_equal(left.target_runs, right.target_runs)
        and np.array_equal(left.layout.lengths, right.layout.lengths)
        and left.layout.row_length == right.layout.row_length
        and left.document_ids == right.document_ids
        and left.sources == right.sources
        and left.final_label == right.final_label
    )
