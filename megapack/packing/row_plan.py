"""`RowPlan`: which documents go into which row. Every planner ends in one."""

from dataclasses import dataclass

import numpy as np

from megapack.errors import ContractError
from megapack.layout.runs import Int32, Int64


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

    @classmethod
    def of_widths(cls, document: Int32, widths: Int64) -> "RowPlan":
        """A plan whose row r holds the next `widths[r]` documents."""
        offsets = np.zeros(widths.size + 1, dtype=np.int64)
        np.cumsum(widths, out=offsets[1:])
        return cls(document=document, offsets=offsets)

    @property
    def num_rows(self) -> int:
        """Rows of the plan."""
        return int(self.offsets.size - 1)

    def row(self, index: int) -> Int32:
        """int32 [N]: documents of one row, in segment order."""
        return self.document[self.offsets[index] : self.offsets[index + 1]]
