"""Pass two of packing: read every token once, and lay it where the plan wants it.

Rows are laid range by range. Where all tokens fit the memory allowed, there is one range, and they
go straight to their place. Otherwise each table part is read once and what it holds for a range is
appended to that range's scratch file; the files are then read one at a time. The rows are the same
for any amount of memory. Scratch files have no name (they are gone when the process is, however it
ends), lie in the temporary folder, and take 4 bytes a token. Letter: P places of a range.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import IO, NamedTuple

import numpy as np

from megapack.errors import DataError, StoreError
from megapack.layout.runs import Int32, Int64
from megapack.packing.rows import RowShape, build_row
from megapack.records.document import Document
from megapack.records.packed_row import PackedRow
from megapack.steps.document_index import DocumentIndex, TablePart, stretches
from megapack.steps.placement import Placement
from megapack.store.location import open_location
from megapack.store.part_reader import PartReader
from megapack.store.ragged import flat_of, offsets_of

PACK_MEMORY_BYTES = 1 << 30
_MOST_RANGES = 512
_TOKEN_BYTES = 4

OnRows = Callable[[int, int], None]
"""Told how many rows are done, and how many there will be."""


class _Block(NamedTuple):
    """Documents of one table part on their way to one range.

    Attributes:
        place: int64 [B], places of the range.
        num_tokens: int32 [B].
        num_runs: int32 [B], values of each document's target runs.
        tokens: int32, those of the documents one after another.
        runs: int32, likewise.
    """

    place: Int64
    num_tokens: Int32
    num_runs: Int32
    tokens: Int32
    runs: Int32


def lay_rows(
    index: DocumentIndex, placement: Placement, shape: RowShape, *, memory_bytes: int
) -> Iterator[PackedRow]:
    """Rows of a placement, in its order.

    Args:
        index: all documents, and where their tokens are.
        placement: what stands where.
        shape: what the rows have in common.
        memory_bytes: bytes of tokens to hold at once; scratch files take what does not fit.

    Raises:
        DataError: a table does not hold what the index says.
        StoreError: a table cannot be read, or the scratch space is full.
    """
    ranges = _ranges(index, placement, memory_bytes=memory_bytes)
    if len(ranges) == 1:
        ranges[0].open()
        for number, block in _blocks(index, placement, ranges):
            ranges[number].put(block)
        yield from ranges[0].rows(shape)
        return
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in ranges]
        for number, block in _blocks(index, placement, ranges):
            _spill(files[number], block)
        for one, file in zip(ranges, files, strict=True):
            one.open()
            for block in _spilled(file):
                one.put(block)
            file.close()
            yield from one.rows(shape)


class _Range:
    """Neighbouring rows whose tokens are in memory together."""

    def __init__(self, index: DocumentIndex, placement: Placement, rows: tuple[int, int]) -> None:
        self._index = index
        self.edges = placement.offsets[rows[0] : rows[1] + 1]
        self.first = int(self.edges[0])
        self._documents = placement.document[self.first : int(self.edges[-1])]

    def open(self) -> None:
        """Make room for the tokens."""
        self._starts = offsets_of(self._index.num_tokens[self._documents])
        self._tokens = np.empty(int(self._starts[-1]), dtype=np.int32)
        count = self._documents.size
        self._run_starts = np.full(count, -1, dtype=np.int64)
        self._run_counts = np.zeros(count, dtype=np.int32)
        self._runs: list[Int32] = []
        self._num_runs = 0

    def put(self, block: _Block) -> None:
        """Lay a block's tokens at their place."""
        edges = offsets_of(block.num_tokens).tolist()
        starts = self._starts[block.place].tolist()
        for start, (begin, end) in zip(starts, pairwise(edges), strict=True):
            self._tokens[start : start + end - begin] = block.tokens[begin:end]
        self._run_starts[block.place] = self._num_runs + offsets_of(block.num_runs)[:-1]
        self._run_counts[block.place] = block.num_runs
        self._runs.append(block.runs)
        self._num_runs += block.runs.size

    def rows(self, shape: RowShape) -> Iterator[PackedRow]:
        """The rows; afterwards the room is given back."""
        runs = np.concatenate(self._runs) if self._runs else np.zeros(0, np.int32)
        self._runs = []
        for begin, end in pairwise((self.edges - self.first).tolist()):
            yield build_row([self._document(at, runs) for at in range(begin, end)], shape)
        del self._tokens, self._starts, self._run_starts, self._run_counts

    def _document(self, place: int, runs: Int32) -> Document:
        number = int(self._documents[place])
        start = int(self._run_starts[place])
        return Document(
            document_id=self._index.document_id(number),
            tokens=self._tokens[self._starts[place] : self._starts[place + 1]],
            target_runs=runs[start : start + int(self._run_counts[place])],
            source=self._index.sources[int(self._index.source[number])],
        )


def _ranges(index: DocumentIndex, placement: Placement, *, memory_bytes: int) -> list[_Range]:
    """Rows cut into ranges of about `memory_bytes`; none of them is empty."""
    before = offsets_of(index.num_tokens[placement.document])[placement.offsets[:-1]]
    total = int(index.num_tokens[placement.document].sum(dtype=np.int64))
    size = max(1, memory_bytes // _TOKEN_BYTES, -(-total // _MOST_RANGES))
    firsts = np.flatnonzero(np.diff(before // size, prepend=-1)).tolist()
    return [_Range(index, placement, rows) for rows in pairwise([*firsts, placement.num_rows])]


def _blocks(
    index: DocumentIndex, placement: Placement, ranges: list[_Range]
) -> Iterator[tuple[int, _Block]]:
    """What each table part holds, by the range that it goes to."""
    firsts = np.array([one.first for one in ranges], dtype=np.int64)
    by_part = np.argsort(index.part[placement.document], kind="stable")
    for owner, first, last in stretches(index.part[placement.document[by_part]]):
        places = by_part[first:last]
        records = index.record[placement.document[places]]
        counts = index.num_tokens[placement.document[places]]
        edges = np.append(np.searchsorted(places, firsts), places.size).tolist()
        part = _PartTokens(index.parts[owner])
        for number, (begin, end) in enumerate(pairwise(edges)):
            if begin < end:
                place = places[begin:end] - ranges[number].first
                yield number, part.block(place, records[begin:end], counts[begin:end])


class _PartTokens:
    """Tokens and runs of one part of a documents table."""

    def __init__(self, source: TablePart) -> None:
        self._where = f"{source.uri}/{source.part.key}"
        # Its digest was checked when the index was read.
        reader = PartReader(open_location(source.uri))
        frame = reader.read(source.part, columns=("tokens", "target_runs"))
        self._tokens, edges = flat_of(frame["tokens"])
        self._runs, run_edges = flat_of(frame["target_runs"])
        self._edges, self._run_edges = edges, run_edges

    def block(self, place: Int64, records: Int32, num_tokens: Int32) -> _Block:
        """Some of its documents, in the order of their places.

        Raises:
            DataError: one has another number of tokens than the index says.
        """
        found = np.diff(self._edges)[records].astype(np.int32)
        wrong = np.flatnonzero(found != num_tokens)
        if wrong.size:
            at = int(wrong[0])
            raise DataError(
                f"{self._where}, record {int(records[at])}: expected {int(num_tokens[at])} tokens, "
                f"as num_tokens says, found {int(found[at])}. Delete the part and run the tokenize "
                "step again."
            )
        return _Block(
            place=place,
            num_tokens=found,
            num_runs=np.diff(self._run_edges)[records].astype(np.int32),
            tokens=_gathered(self._tokens, self._edges, records),
            runs=_gathered(self._runs, self._run_edges, records),
        )


def _gathered(values: Int32, edges: Int64, records: Int32) -> Int32:
    starts, ends = edges[records].tolist(), edges[records + 1].tolist()
    return np.concatenate([values[start:end] for start, end in zip(starts, ends, strict=True)])


def _spill(file: IO[bytes], block: _Block) -> None:
    try:
        sizes = (block.place.size, block.tokens.size, block.runs.size)
        file.write(np.array(sizes, dtype=np.int64).tobytes())
        for array in block:
            file.write(array.data)
    except OSError as error:
        raise StoreError(_no_scratch(error)) from error


def _spilled(file: IO[bytes]) -> Iterator[_Block]:
    try:
        file.seek(0)
    except OSError as error:  # what was still buffered is written now
        raise StoreError(_no_scratch(error)) from error
    while head := file.read(3 * 8):
        documents, tokens, runs = np.frombuffer(head, dtype=np.int64).tolist()
        yield _Block(
            place=_read(file, documents, np.dtype(np.int64)),
            num_tokens=_read(file, documents, np.dtype(np.int32)),
            num_runs=_read(file, documents, np.dtype(np.int32)),
            tokens=_read(file, tokens, np.dtype(np.int32)),
            runs=_read(file, runs, np.dtype(np.int32)),
        )


def _read[Number: np.integer](
    file: IO[bytes], count: int, dtype: np.dtype[Number]
) -> np.ndarray[tuple[int], np.dtype[Number]]:
    return np.frombuffer(file.read(count * dtype.itemsize), dtype=dtype)


def _no_scratch(error: OSError) -> str:
    return (
        f"pack: expected scratch space of 4 bytes a token in {tempfile.gettempdir()}, found: "
        f"{error.strerror}. Free space there, or set TMPDIR to a larger disk."
    )
