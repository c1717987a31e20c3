"""The columns of packed rows that say everything but the tokens, one part at a time.

This is the one place outside the store that names them. Costs about 2% of the bytes of a part.
"""

from collections.abc import Iterator, Sequence

import polars as pl

from megapack.records.packed_row import PackedRow
from megapack.steps.wording import counted
from megapack.store.committed import Committed
from megapack.store.location import open_location
from megapack.store.manifest import Part, PartKind, Split
from megapack.store.part_reader import PartReader

GEOMETRY = ("lengths", "target_runs", "sources")


def geometry(version: Committed) -> Iterator[tuple[Part, pl.DataFrame]]:
    """Lengths, target runs and sources of every row, by part, in the manifest's order.

    Returns:
        Frames with `lengths` (List, N a row), `target_runs` (List, target-aligned runs over row
        positions) and `sources` (List, N a row).

    Raises:
        StoreError: a part is missing, or the store failed.
        DataError: a part is damaged.
    """
    reader = PartReader(open_location(version.uri))
    for part in version.manifest.parts_of(PartKind.ROWS):
        yield part, reader.read(part, columns=GEOMETRY)


def longest_document(version: Committed, split: Split) -> int:
    """Positions of the longest document of a split, 0 when it has none.

    Args:
        version: a packed dataset.
        split: side of the split.

    Raises:
        StoreError: a part is missing, or the store failed.
        DataError: a part is damaged.
    """
    reader = PartReader(open_location(version.uri))
    longest = 0
    for part in version.manifest.parts_of(PartKind.ROWS, split):
        lengths = reader.read(part, columns=("lengths",))["lengths"].explode().drop_nulls()
        longest = max(longest, int(lengths.to_numpy().max(initial=0)))
    return longest


def placed_documents(
    version: Committed, split: Split, *, max_rows: int | None
) -> Iterator[pl.DataFrame]:
    """The documents of the first rows of a split, by part, in stored order.

    Args:
        version: a packed dataset.
        split: side of the split.
        max_rows: rows to look at, None for all.

    Returns:
        Frames with `row` (Int64, number inside the split), `document_id`, `source` and `length`
        (Int32, positions), one record a document.

    Raises:
        StoreError: a part is missing, or the store failed.
        DataError: a part is damaged.
    """
    reader = PartReader(open_location(version.uri))
    first = 0
    for part in version.manifest.parts_of(PartKind.ROWS, split):
        count = part.num_records if max_rows is None else min(part.num_records, max_rows - first)
        if count <= 0:
            return
        frame = reader.read(part, columns=("document_ids", "sources", "lengths")).head(count)
        numbered = frame.with_columns(pl.int_range(first, first + count).alias("row"))
        lists = ["document_ids", "sources", "lengths"]
        yield (
            numbered.explode(lists)
            .drop_nulls("document_ids")
            .select(
                pl.col("row"),
                pl.col("document_ids").alias("document_id"),
                pl.col("sources").alias("source"),
                pl.col("lengths").alias("length"),
            )
        )
        first += part.num_records


def find_documents(
    version: Committed, document_ids: Sequence[str]
) -> Iterator[tuple[Split, int, int]]:
    """Places of the documents whose id begins like one of these: split, row inside it, segment.

    Args:
        version: a packed dataset.
        document_ids: ids, or their first digits; at least one.

    Raises:
        StoreError: a part is missing, or the store failed.
        DataError: a part is damaged.
    """
    reader = PartReader(open_location(version.uri))
    before = dict.fromkeys(Split, 0)
    for part in version.manifest.parts_of(PartKind.ROWS):
        ids = reader.read(part, columns=("document_ids",))["document_ids"]
        for row, segment in _matches(ids, document_ids):
            yield part.split, before[part.split] + row, segment
        before[part.split] += part.num_records


def _matches(ids: pl.Series, begins: Sequence[str]) -> Iterator[tuple[int, int]]:
    flat = pl.DataFrame({"row": range(len(ids)), "id": ids}).explode("id")
    hits = flat.with_row_index("at").filter(
        pl.any_horizontal(pl.col("id").str.starts_with(one) for one in begins)
    )
    firsts = flat["row"].search_sorted(hits["row"])
    for row, at, first in zip(hits["row"], hits["at"], firsts, strict=True):
        yield int(row), int(at) - int(first)


def title_of(row: PackedRow, *, split: Split, number: int) -> str:
    """One line on a row: documents, positions, padding, targets."""
    length, real = row.layout.row_length, row.num_real_tokens
    held = counted(row.layout.num_segments, "document")
    return (
        f"row {number} of {split.value}: {held}, {real:,} of {length:,} positions hold tokens, "
        f"{length - real:,} are padding, {row.num_target_tokens:,} are trained"
    )
