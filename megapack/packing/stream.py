"""Pack in one pass over documents in reading order, with a bounded number of open rows.

For sources that do not end, or whose order should be kept near. Nothing is dropped and nothing
waits outside the open rows: a document is in a row as soon as it was added. Which row, and the
order in which rows close, follow from the documents alone (see `open_rows`). On log-normal lengths
512 open rows give at least 99.7% of the bound.

`StreamPacker.state()` is JSON and may be taken at any time, between two rows of one document's
making included. A packer made from it, fed from the stated position of the source, closes exactly
the rows that the first one would have closed.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from megapack.errors import ContractError
from megapack.packing.loops import Backend, loops_for
from megapack.packing.open_rows import OpenRows
from megapack.packing.row_plan import RowPlan
from megapack.packing.slot_lengths import checked_lengths

STATE_VERSION = 1

DEFAULT_OPEN_ROWS = 512

Key = int | str
"""How a caller names a document: its index or its id."""


class OpenRow(BaseModel):
    """A row that takes documents.

    Attributes:
        number: rows are numbered as they are opened.
        space: positions left.
        documents: what it holds, in order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=0)
    space: int = Field(ge=1)
    documents: tuple[Key, ...] = Field(min_length=1)


class StreamState(BaseModel):
    """Where a packer stands; `model_dump_json` and `model_validate_json` carry it.

    Attributes:
        version: of this record.
        capacity: row length.
        most_open: rows that may be open between documents.
        consumed: documents added so far: where the source goes on.
        opened: rows opened so far.
        closed: rows closed so far.
        open_rows: rows that take documents.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = STATE_VERSION
    capacity: int = Field(ge=1)
    most_open: int = Field(ge=1)
    consumed: int = Field(ge=0)
    opened: int = Field(ge=0)
    closed: int = Field(ge=0)
    open_rows: tuple[OpenRow, ...]

    @model_validator(mode="after")
    def _adds_up(self) -> "StreamState":
        if self.version != STATE_VERSION:
            raise ValueError(
                f"StreamState.version: expected {STATE_VERSION}, found {self.version}. It was "
                "written by another version of megapack; start the stream anew."
            )
        if self.opened != self.closed + len(self.open_rows):
            raise ValueError(
                f"StreamState: {self.opened} rows opened, but {self.closed} closed + "
                f"{len(self.open_rows)} open. The state is damaged."
            )
        return self


class StreamPacker:
    """Places documents one by one.

    >>> packer = StreamPacker(8, most_open=2)
    >>> [packer.add(document, length) for document, length in enumerate([5, 6, 4, 2])]
    [None, None, (1,), None]
    >>> list(packer.finish())
    [(0, 3), (2,)]
    """

    def __init__(self, capacity: int, *, most_open: int = DEFAULT_OPEN_ROWS) -> None:
        self._capacity = capacity
        self._most_open = most_open
        self._rows = OpenRows(capacity, most_open)
        self._documents: dict[int, list[Key]] = {}
        self._consumed = 0

    @classmethod
    def resume(cls, state: StreamState) -> "StreamPacker":
        """A packer that goes on where `state` was taken."""
        packer = cls(state.capacity, most_open=state.most_open)
        spaces = {row.number: row.space for row in state.open_rows}
        packer._rows.reopen(spaces, state.opened)
        packer._documents = {row.number: list(row.documents) for row in state.open_rows}
        packer._consumed = state.consumed
        return packer

    @property
    def consumed(self) -> int:
        """Documents added so far."""
        return self._consumed

    def state(self) -> StreamState:
        """Where the packer stands."""
        spaces = self._rows.spaces()
        return StreamState(
            capacity=self._capacity,
            most_open=self._most_open,
            consumed=self._consumed,
            opened=self._rows.opened,
            closed=self._rows.opened - len(spaces),
            open_rows=tuple(
                OpenRow(number=number, space=space, documents=tuple(self._documents[number]))
                for number, space in spaces.items()
            ),
        )

    def add(self, document: Key, slot_length: int) -> tuple[Key, ...] | None:
        """Place a document.

        Args:
            document: what the row will hold.
            slot_length: its padded length, in [1, capacity].

        Returns:
            The row that closed with it, in segment order, if one did.

        Raises:
            ContractError: the length is out of range; the packer is as before.
        """
        if not 1 <= slot_length <= self._capacity:
            raise ContractError(
                f"StreamPacker.add: document {document} has slot length {slot_length}, expected "
                f"1 to capacity = {self._capacity}. Leave out and count longer ones before."
            )
        number, closed = self._rows.place(slot_length)
        self._documents.setdefault(number, []).append(document)
        self._consumed += 1
        return None if closed is None else tuple(self._documents.pop(closed))

    def finish(self) -> Iterator[tuple[Key, ...]]:
        """Close the rows that are still open, fullest first."""
        while (number := self._rows.close()) is not None:
            yield tuple(self._documents.pop(number))


def pack_stream(
    documents: Iterable[tuple[Key, int]], packer: StreamPacker
) -> Iterator[tuple[Key, ...]]:
    """Rows of a source, as they close.

    Args:
        documents: (document, slot length) in reading order, from `packer.consumed` on.
        packer: its `state()` may be taken after any row that was received.

    Yields:
        Documents of a row, in segment order.

    Raises:
        ContractError: a length is out of range.
    """
    for document, slot_length in documents:
        row = packer.add(document, slot_length)
        if row is not None:
            yield row
    yield from packer.finish()


def plan_stream(
    slot_lengths: npt.ArrayLike,
    capacity: int,
    *,
    most_open: int = DEFAULT_OPEN_ROWS,
    backend: Backend = Backend.AUTO,
) -> RowPlan:
    """The rows of `pack_stream` for lengths that are all known.

    >>> plan = plan_stream([5, 6, 4, 2], 8, most_open=2)
    >>> [plan.row(r).tolist() for r in range(plan.num_rows)]
    [[1], [0, 3], [2]]

    Args:
        slot_lengths: int [M], padded length of each document in reading order.
        capacity: row length.
        most_open: rows that may be open between documents.
        backend: what runs the loops; the plan is the same.

    Returns:
        A plan that holds every document once; rows in the order in which they closed, documents
        of a row in reading order.

    Raises:
        ContractError: a length is out of range.
    """
    lengths = checked_lengths(slot_lengths, capacity, where="plan_stream")
    row_of, order, rows = loops_for(lengths.size, backend).close_rows(lengths, capacity, most_open)
    closed = order[:rows]
    rank = np.empty(rows, dtype=np.int32)
    rank[closed] = np.arange(rows, dtype=np.int32)
    document = np.argsort(rank[row_of], kind="stable").astype(np.int32)
    return RowPlan.of_widths(document, np.bincount(row_of, minlength=rows)[closed])
