"""Where the records of a file stand, block by block, and one block that was read.

A block is what is read at once: a row group of a Parquet file (or a part of a very large one), or
some lines of a JSONL file. Letters: B blocks of a file, n records of a block.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileBlocks:
    """Blocks of one file, in its order.

    Attributes:
        units: int64 [B], ascending from 0: blocks that are read in their order, one after another.
        starts: int64 [B], where a block begins: a byte of a JSONL file, a row of its row group.
        ends: int64 [B], one past its end.
        first_rows: int64 [B], row or line of the file at which it begins.
        sizes: int64 [B], its records; none is empty.
        row_groups: row groups of a Parquet file, empty ones included; 0 for JSONL.
    """

    units: Int64
    starts: Int64
    ends: Int64
    first_rows: Int64
    sizes: Int64
    row_groups: int = 0

    @classmethod
    def of(cls, blocks: list[tuple[int, int, int, int, int]], *, row_groups: int) -> "FileBlocks":
        """From (unit, start, end, first row, size) of each."""
        columns = np.array(blocks, dtype=np.int64).reshape(-1, 5).T
        units, starts, ends, first_rows, sizes = columns
        return cls(
            units=units,
            starts=starts,
            ends=ends,
            first_rows=first_rows,
            sizes=sizes,
            row_groups=row_groups,
        )

    @property
    def num_records(self) -> int:
        """Records of the file."""
        return int(self.sizes.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordBlock:
    """Records of one block.

    Attributes:
        rows: int64 [n], ascending: row or line of the file of each.
        record: gives one by its number in the block; raises DataError for one that cannot be read.
    """

    rows: Int64
    record: Callable[[int], Mapping[str, object]]
