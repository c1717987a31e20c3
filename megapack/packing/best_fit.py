"""Exact best-fit-decreasing on the histogram of slot lengths, without a compiler.

Best-fit-decreasing puts each document, longest first, into the fullest row that still takes it.
Rows with the same remaining space are interchangeable as well, so the plan is made over groups: a
length of which c documents are left meets the smallest remaining space r >= length, and every row
of that group takes r // length of them at once. The result is the per-document algorithm's, at a
cost that follows the number of distinct lengths (about 2 us each), not of documents.
"""

import numpy as np

from megapack.layout.runs import Int64
from megapack.packing.row_groups import Table

WORD = 10
"""log2 of the bits of a word of `_Spaces`: two levels reach over a million positions."""


class _Spaces:
    """The set of remaining spaces at which a group stands, as two levels of bits."""

    def __init__(self, capacity: int) -> None:
        self._words = [0] * ((capacity >> WORD) + 1)
        self._used = 0

    def add(self, space: int) -> None:
        word = space >> WORD
        self._words[word] |= 1 << (space & (1 << WORD) - 1)
        self._used |= 1 << word

    def remove(self, space: int) -> None:
        word = space >> WORD
        self._words[word] &= ~(1 << (space & (1 << WORD) - 1))
        if not self._words[word]:
            self._used &= ~(1 << word)

    def smallest(self, least: int) -> int | None:
        """Smallest member of at least `least`."""
        word = least >> WORD
        inside = self._words[word] >> (least & (1 << WORD) - 1)
        if inside:
            return least + _lowest(inside)
        above = self._used >> (word + 1)
        if not above:
            return None
        word += 1 + _lowest(above)
        return (word << WORD) + _lowest(self._words[word])


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


class _Growing:
    """Groups while they grow, as columns."""

    def __init__(self, capacity: int) -> None:
        self.spaces = _Spaces(capacity)
        self.at_space: dict[int, list[int]] = {}
        self.parent: list[int] = []
        self.length: list[int] = []
        self.each: list[int] = []
        self.number: list[int] = []
        self.space: list[int] = []

    def take(self, space: int, most: int) -> tuple[int, int]:
        """Take up to `most` rows from the youngest group with this space: (group, rows)."""
        groups = self.at_space[space]
        group = groups[-1]
        taken = min(self.number[group], most)
        self.number[group] -= taken
        if not self.number[group]:
            groups.pop()
            if not groups:
                self.spaces.remove(space)
        return group, taken

    def grow(self, parent: int, *, length: int, each: int, number: int, space: int) -> None:
        """Add a group; one without space takes part no more."""
        if space:
            groups = self.at_space.setdefault(space, [])
            if not groups:
                self.spaces.add(space)
            groups.append(len(self.parent))
        self.parent.append(parent)
        self.length.append(length)
        self.each.append(each)
        self.number.append(number)
        self.space.append(space)

    def table(self) -> Table:
        columns = (self.parent, self.length, self.each, self.number, self.space)
        return np.array(columns, dtype=np.int64)


def group_rows(starts: Int64, capacity: int) -> Table:
    """Best-fit-decreasing over lengths.

    Args:
        starts: int64 [capacity + 2], where each length starts in the sorted documents.
        capacity: row length.

    Returns:
        int64 [5, G], columns of the `RowGroups` that hold every document.
    """
    rows = _Growing(capacity)
    counts = np.diff(starts)
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            best = rows.spaces.smallest(length)
            space = capacity if best is None else best
            room = space // length
            wanted, each = (left // room, room) if left >= room else (1, left)
            parent, taken = (-1, wanted) if best is None else rows.take(best, wanted)
            rows.grow(parent, length=length, each=each, number=taken, space=space - each * length)
            left -= taken * each
    return rows.table()
