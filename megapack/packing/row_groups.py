"""Groups of rows that hold the same lengths.

Documents of one length are interchangeable, so a plan is first made over lengths: a group is a
number of rows that all hold the same. Groups share their beginnings: each names the group it was
grown from and what was added, as a tree whose leaves are the rows of the plan.
"""

from dataclasses import dataclass

import numpy as np

from megapack.layout.runs import Int64

Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""int64 [5, G]: parent, length, each, number and space of each group."""


@dataclass(frozen=True, slots=True, eq=False)
class RowGroups:
    """A tree of groups. Letters: G groups.

    Attributes:
        table: int64 [5, G], the columns below.
    """

    table: Table

    def _column(self, index: int) -> Int64:
        column: Int64 = self.table[index]
        return column

    @property
    def parent(self) -> Int64:
        """int64 [G]: the group each was grown from, a smaller index; -1 for empty rows."""
        return self._column(0)

    @property
    def length(self) -> Int64:
        """int64 [G]: length of the documents added. No length is added twice on a path."""
        return self._column(1)

    @property
    def each(self) -> Int64:
        """int64 [G]: how many of them every row got."""
        return self._column(2)

    @property
    def number(self) -> Int64:
        """int64 [G]: rows that ended in the group."""
        return self._column(3)

    @property
    def space(self) -> Int64:
        """int64 [G]: positions left in each row of the group."""
        return self._column(4)

    @property
    def num_rows(self) -> int:
        """Rows of all groups."""
        return int(self.number.sum())

    def leaves(self) -> Int64:
        """int64: groups that rows ended in; full rows first, then by space, then by age."""
        ended = np.flatnonzero(self.number)
        return ended[np.argsort(self.space[ended], kind="stable")]

    def and_then(self, other: "RowGroups") -> "RowGroups":
        """The rows of both; `other`'s are younger."""
        moved = other.table.copy()
        moved[0, other.parent >= 0] += self.table.shape[1]
        return RowGroups(np.concatenate([self.table, moved], axis=1))
