"""Plan rows from lengths alone: exact best-fit-decreasing on the histogram of slot lengths.

Best-fit-decreasing puts each document, longest first, into the fullest row that still takes it.
Documents of one length are interchangeable, and so are rows with the same remaining space, so the
plan is made over groups: a length of which c documents are left meets the smallest remaining space
r >= length, and every row of that group takes r // length of them at once. The result is the
per-document algorithm's, at a cost that follows the number of distinct lengths, not of documents.

No tokens are touched here, and nothing is dropped: a length above the capacity is an error.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError
from megapack.layout.runs import Int32, Int64

Pattern = tuple["Pattern | None", int, int]
"""What every row of a group holds: (pattern before, length, how many of that length)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowPlan:
    """Which documents go into which row.

    Attributes:
        document: int32 [M], document indices grouped by row, in segment order.
        offsets: int64 [rows + 1]; row r holds `document[offsets[r]:offsets[r + 1]]`.
    """

    document: Int32
    offsets: Int64

    def __post_init__(self) -> None:
        if self.offsets.size < 1 or self.offsets[0] != 0 or self.offsets[-1] != self.document.size:
            raise ContractError(
                f"RowPlan.offsets: expected 0 ... {self.document.size}, found "
                f"{self.offsets[:1].tolist()} ... {self.offsets[-1:].tolist()}."
            )

    @property
    def num_rows(self) -> int:
        """Rows of the plan."""
        return int(self.offsets.size - 1)

    def row(self, index: int) -> Int32:
        """int32 [N]: documents of one row, in segment order."""
        return self.document[self.offsets[index] : self.offsets[index + 1]]


class _OpenRows:
    """Groups of open rows by remaining space; a bit of `spaces` is set where a group stands."""

    def __init__(self) -> None:
        self.spaces = 0
        self.groups: dict[int, list[tuple[int, Pattern]]] = {}
        self.closed: list[tuple[int, Pattern]] = []

    def smallest(self, length: int) -> int | None:
        """Smallest remaining space of at least `length`, None when no open row takes it."""
        fitting = self.spaces >> length
        if not fitting:
            return None
        return length + (fitting & -fitting).bit_length() - 1

    def take(self, space: int, most: int) -> tuple[int, Pattern]:
        """Remove up to `most` rows from the last group with this remaining space."""
        groups = self.groups[space]
        count, pattern = groups.pop()
        if count > most:
            groups.append((count - most, pattern))
        if not groups:
            del self.groups[space]
            self.spaces &= ~(1 << space)
        return min(count, most), pattern

    def put(self, space: int, count: int, pattern: Pattern) -> None:
        """Add rows with this remaining space; full rows are closed."""
        if space == 0:
            self.closed.append((count, pattern))
            return
        self.groups.setdefault(space, []).append((count, pattern))
        self.spaces |= 1 << space

    def all_groups(self) -> list[tuple[int, Pattern]]:
        """Every row of the plan, full rows first."""
        still_open = [self.groups[space] for space in sorted(self.groups)]
        return self.closed + [group for groups in still_open for group in groups]


def plan_rows(slot_lengths: npt.ArrayLike, capacity: int) -> RowPlan:
    """Exact best-fit-decreasing.

    >>> plan = plan_rows([3, 5, 2, 6], 8)
    >>> [plan.row(r).tolist() for r in range(plan.num_rows)]
    [[3, 2], [1, 0]]

    Args:
        slot_lengths: int [M], padded length of each document, in [1, capacity].
        capacity: row length.

    Returns:
        A plan that holds every document once.

    Raises:
        ContractError: a length is out of range.
    """
    lengths = np.asarray(slot_lengths, dtype=np.int64).reshape(-1)
    outside = np.flatnonzero((lengths < 1) | (lengths > capacity))
    if outside.size:
        raise ContractError(
            f"plan_rows: document {int(outside[0])} has slot length {int(lengths[outside[0]])}, "
            f"expected 1 to capacity = {capacity}."
        )
    if lengths.size == 0:
        return RowPlan(document=np.zeros(0, np.int32), offsets=np.zeros(1, np.int64))
    counts = np.bincount(lengths, minlength=capacity + 1)
    groups = _plan_groups(counts, capacity)
    return _expand(groups, lengths, counts)


def _plan_groups(counts: Int64, capacity: int) -> list[tuple[int, Pattern]]:
    """Groups of equal rows as (number of rows, pattern)."""
    rows = _OpenRows()
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            space = rows.smallest(length)
            room = (capacity if space is None else space) // length
            wanted, each = (left // room, room) if left >= room else (1, left)
            before: Pattern | None = None
            if space is not None:
                wanted, before = rows.take(space, wanted)
            rest = (capacity if space is None else space) - each * length
            rows.put(rest, wanted, (before, length, each))
            left -= wanted * each
    return rows.all_groups()


def _expand(groups: list[tuple[int, Pattern]], lengths: Int64, counts: Int64) -> RowPlan:
    """Give the rows their documents: those of one length go out in input order."""
    by_length = np.argsort(lengths, kind="stable").astype(np.int32)
    following = np.concatenate(([0], np.cumsum(counts)))[:-1].tolist()
    blocks: list[Int32] = []
    widths: list[int] = []
    heights: list[int] = []
    for count, pattern in groups:
        columns: list[Int32] = []
        step: Pattern | None = pattern
        while step is not None:
            step_before, length, each = step
            start = following[length]
            following[length] = start + count * each
            columns.append(by_length[start : start + count * each].reshape(count, each))
            step = step_before
        block = np.concatenate(columns[::-1], axis=1)
        blocks.append(block.ravel())
        heights.append(count)
        widths.append(block.shape[1])
    offsets = np.zeros(sum(heights) + 1, dtype=np.int64)
    np.cumsum(np.repeat(widths, heights), out=offsets[1:])
    return RowPlan(document=np.concatenate(blocks), offsets=offsets)


def shuffled(plan: RowPlan, seed: int) -> RowPlan:
    """The same rows in a seeded order; the caller's random state is not touched.

    Args:
        plan: rows in planning order.
        seed: seed of the order (Philox).

    Returns:
        A plan whose rows are a permutation of `plan`'s.
    """
    order = np.random.Generator(np.random.Philox(seed)).permutation(plan.num_rows)
    counts = np.diff(plan.offsets)[order]
    offsets = np.zeros(plan.num_rows + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    source = np.repeat(plan.offsets[:-1][order] - offsets[:-1], counts)
    return RowPlan(document=plan.document[np.arange(plan.document.size) + source], offsets=offsets)
