"""The rows that a one-pass packer holds open: best fit among a bounded number of them.

A document goes into the fullest open row that takes it, the earliest opened of those; else it opens
one. A full row closes at once. When more rows are open than may be, the fullest closes, the
earliest opened of those. So at most one row closes with each document.

Rows stand sorted as integers, space * 2^32 + number of the row, where rows are numbered by opening.
About 1 us a document, 40 ns compiled.
"""

from bisect import bisect_left, insort

import numpy as np

from megapack.layout.runs import Int32

NUMBER = 0xFFFFFFFF
"""Bits of the row number in a sorted entry."""


class OpenRows:
    """Open rows by space."""

    def __init__(self, capacity: int, most_open: int) -> None:
        self._capacity = capacity
        self._most_open = most_open
        self._sorted: list[int] = []
        self.opened = 0

    def place(self, length: int) -> tuple[int, int | None]:
        """Find a row for a document.

        Args:
            length: its slot length, in [1, capacity].

        Returns:
            Number of its row, and number of the row that closes with it, if any.
        """
        rows = self._sorted
        best = bisect_left(rows, length << 32)
        if best < len(rows):
            entry = rows.pop(best) - (length << 32)
        else:
            entry = (self._capacity - length << 32) | self.opened
            self.opened += 1
        insort(rows, entry)
        closes = rows[0] >> 32 == 0 or len(rows) > self._most_open
        return entry & NUMBER, self.close() if closes else None

    def close(self) -> int | None:
        """Close the fullest row and give its number; None when none is open."""
        return self._sorted.pop(0) & NUMBER if self._sorted else None

    def spaces(self) -> dict[int, int]:
        """Space left by number of row, fullest first."""
        return {entry & NUMBER: entry >> 32 for entry in self._sorted}

    def reopen(self, spaces: dict[int, int], opened: int) -> None:
        """Go on from what `spaces` and `opened` were."""
        self._sorted = sorted((space << 32) | number for number, space in spaces.items())
        self.opened = opened


def close_rows(lengths: Int32, capacity: int, most_open: int) -> tuple[Int32, Int32, int]:
    """Place all documents in one pass.

    Args:
        lengths: int32 [M], slot lengths in reading order.
        capacity: row length.
        most_open: rows that may be open between documents.

    Returns:
        int32 [M], number of the row of each document; int32 [M], of which the first `rows` count:
        rows in the order in which they closed; and `rows`.
    """
    rows = OpenRows(capacity, most_open)
    row_of = np.empty(lengths.size, dtype=np.int32)
    closed: list[int] = []
    for document, length in enumerate(lengths.tolist()):
        row_of[document], full = rows.place(length)
        if full is not None:
            closed.append(full)
    while (rest := rows.close()) is not None:
        closed.append(rest)
    order = np.zeros(lengths.size, dtype=np.int32)
    order[: len(closed)] = closed
    return row_of, order, len(closed)
