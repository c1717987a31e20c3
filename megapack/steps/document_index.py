"""What is known of every document before its tokens are touched.

Pass one of packing: small columns of the documents tables as flat arrays, 36 bytes a document; 10M
documents are admitted and planned in 0.9 GB (measured). Strings stay in the tables; where a drop
has to be described, its place is read from there again. Letter: D documents, in reading order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from megapack.errors import ContractError
from megapack.layout.runs import Int32, Int64
from megapack.steps.tables import parts
from megapack.store.committed import Committed
from megapack.store.manifest import Part, PartKind
from megapack.store.part_reader import Verify

UInt64 = npt.NDArray[np.uint64]
_COLUMNS = ("document_id", "num_tokens", "source", "uri", "line")
_HALF_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """A part of a documents table.

    Attributes:
        uri: the table's store.
        part: as the table's manifest has it.
    """

    uri: str
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentIndex:
    """Flat arrays over all documents that were tokenized.

    Attributes:
        high: uint64 [D], first 16 hex digits of each document id: those of its conversation.
        low: uint64 [D], last 16 hex digits.
        num_tokens: int32 [D].
        source: int32 [D], number in `sources`.
        part: int32 [D], number in `parts`; ascending.
        record: int32 [D], record number in that part.
        given: int32 [D], ascending; documents of one record of a source file share it.
        sources: names, in the order of their first document.
        parts: parts that hold the tokens.
    """

    high: UInt64
    low: UInt64
    num_tokens: Int32
    source: Int32
    part: Int32
    record: Int32
    given: Int32
    sources: tuple[str, ...]
    parts: tuple[TablePart, ...]

    @property
    def size(self) -> int:
        """D."""
        return int(self.num_tokens.size)

    def document_id(self, number: int) -> str:
        """The 32 hex digits of one document."""
        return f"{int(self.high[number]):016x}{int(self.low[number]):016x}"

    def keys(self, numbers: Int64) -> pl.DataFrame:
        """Ids and source names of some documents, to compare them with those of stored rows.

        Args:
            numbers: int [M], documents.

        Returns:
            Columns `high`, `low` (UInt64) and `source` (String); M records.
        """
        names = pl.Series("name", self.sources, dtype=pl.String)
        return pl.DataFrame(
            {
                "high": self.high[numbers],
                "low": self.low[numbers],
                "source": names.gather(self.source[numbers]),
            },
            schema=KEY_SCHEMA,
        )

    def by_part(self, numbers: Int64) -> Iterator[tuple[TablePart, Int64]]:
        """Ascending documents, part by part.

        Args:
            numbers: int64 [M], ascending.

        Yields:
            A part, and those of the documents that it holds; parts without any are left out.
        """
        for owner, begin, end in stretches(self.part[numbers]):
            yield self.parts[owner], numbers[begin:end]


KEY_SCHEMA = {"high": pl.UInt64, "low": pl.UInt64, "source": pl.String}
"""Columns that say which document a stored or a new one is."""


def stretches(values: Int32) -> Iterator[tuple[int, int, int]]:
    """Stretches of equal values in an ascending array, as (value, begin, end).

    >>> list(stretches(np.array([4, 4, 7], np.int32)))
    [(4, 0, 2), (7, 2, 3)]
    """
    found, firsts = np.unique(values, return_index=True)
    edges = [*firsts.tolist(), values.size]
    yield from zip(found.tolist(), edges[:-1], edges[1:], strict=True)


def id_halves(ids: str = "document_id") -> list[pl.Expr]:
    """A column of document ids as the two columns `high` and `low`."""
    halves = {"high": pl.col(ids).str.head(_HALF_DIGITS), "low": pl.col(ids).str.slice(16)}
    return [
        half.str.to_integer(base=16, dtype=pl.UInt64).alias(name) for name, half in halves.items()
    ]


def read_index(documents: Sequence[Committed]) -> DocumentIndex:
    """Read the small columns of documents tables.

    Args:
        documents: tables of the tokenize step, in reading order.

    Raises:
        StoreError: a table cannot be read.
        DataError: a part is damaged; an altered one is deleted, so that a rerun makes it again.
    """
    building = _Building()
    for version in documents:
        building.begin_table(version.uri, split=version.manifest.parents.get("conversations", ""))
        for part, frame in parts(
            version, PartKind.DOCUMENTS, verify=Verify.DISCARD, columns=_COLUMNS
        ):
            building.add(TablePart(uri=version.uri, part=part), frame)
    return building.index()


class _Building:
    """Arrays of the parts read so far."""

    def __init__(self) -> None:
        self._blocks: list[pl.DataFrame] = []
        self._sources: dict[str, int] = {}
        self._parts: list[TablePart] = []
        self._tables: set[str] = set()
        self._split = ""
        self._last: tuple[str, int] | None = None
        self._given = -1

    def begin_table(self, uri: str, *, split: str) -> None:
        """Begin a table.

        Uris do not tell files apart: one that was renamed keeps the uri under which it was first
        seen, which another file may have by now.

        Args:
            uri: of the table; one read before is another file with equal content.
            split: digest of the split table that it was made from, one a file.
        """
        if uri in self._tables or split != self._split:
            self._tables.clear()
            self._last = None
        self._split = split
        self._tables.add(uri)

    def add(self, part: TablePart, frame: pl.DataFrame) -> None:
        """Take the small columns of one part."""
        if not frame.height:
            return
        for name in frame["source"].unique(maintain_order=True):
            self._sources.setdefault(name, len(self._sources))
        numbers = pl.Series(list(self._sources.values()), dtype=pl.Int32)
        source = frame["source"].replace_strict(
            pl.Series(list(self._sources), dtype=pl.String), numbers
        )
        self._blocks.append(
            frame.select(
                *id_halves(),
                pl.col("num_tokens"),
                source.alias("source"),
                pl.lit(len(self._parts), pl.Int32).alias("part"),
                pl.int_range(pl.len(), dtype=pl.Int32).alias("record"),
                pl.Series("given", self._records(frame), dtype=pl.Int32),
            )
        )
        self._parts.append(part)

    def index(self) -> DocumentIndex:
        """All that was added."""
        numbers = {
            name: _joined(self._blocks, name, np.int32)
            for name in ("num_tokens", "source", "part", "record", "given")
        }
        if numbers["num_tokens"].size > np.iinfo(np.int32).max:
            raise ContractError(
                f"expected at most 2**31 - 1 documents in one dataset, found "
                f"{numbers['num_tokens'].size}. Prepare them as several datasets."
            )
        return DocumentIndex(
            high=_joined(self._blocks, "high", np.uint64),
            low=_joined(self._blocks, "low", np.uint64),
            **numbers,
            sources=tuple(self._sources),
            parts=tuple(self._parts),
        )

    def _records(self, frame: pl.DataFrame) -> Int64:
        """Number of the source record of each document; neighbours with equal place share it."""
        changed = (
            frame.select((pl.col("uri") != pl.col("uri").shift()) | (pl.col("line").diff() != 0))
            .to_series()
            .fill_null(value=True)
            .to_numpy()
            .astype(np.int64)
        )
        first, last = frame.row(0, named=True), frame.row(-1, named=True)
        changed[0] = (first["uri"], first["line"]) != self._last
        numbers = self._given + np.cumsum(changed)
        self._last = (last["uri"], last["line"])
        self._given = int(numbers[-1])
        return numbers


def _joined[Number: np.generic](
    blocks: Sequence[pl.DataFrame], name: str, dtype: type[Number]
) -> npt.NDArray[Number]:
    arrays = [block[name].to_numpy() for block in blocks]
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.zeros(0, dtype)
