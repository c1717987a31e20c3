"""`ForeignRow`: one packed row of another tool, as all checks see it.

Letters: L positions, N documents.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from megapack.layout.runs import Bool, Int64, runs_of_mask
from megapack.steps.foreign.faults import Fault, FaultLog


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForeignRow:
    """One row.

    Attributes:
        where: file and row, for messages.
        tokens: int64 [L].
        learnt: bool [L], token-aligned: True at tokens whose label counts.
        starts: int64 [N], first position of each document; the first is 0.
        padding: bool [L], True at padding, as far as the file says so.
        positions: int64 [L], or None when the file has none.
    """

    where: str
    tokens: Int64
    learnt: Bool
    starts: Int64
    padding: Bool
    positions: Int64 | None = None

    def documents(self) -> Iterator[tuple[int, int, int]]:
        """Number, first position and end of each document."""
        edges = [*self.starts.tolist(), self.tokens.size]
        for number, start in enumerate(edges[:-1]):
            yield number, start, edges[number + 1]

    def answers(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Start and end of every stretch of learnt tokens of a document."""
        runs = runs_of_mask(self.learnt[start:end]) + start
        yield from zip(runs[0::2].tolist(), runs[1::2].tolist(), strict=True)


def whole_numbers(value: Any, *, name: str, where: str, log: FaultLog) -> Int64 | None:  # noqa: ANN401 - what a file holds
    """A column of a record as int64, or None and a fault when it is no flat list of integers."""
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.zeros((0, 0))
    if array.ndim == 1 and (array.size == 0 or array.dtype.kind in "biu" or _is_whole(array)):
        return array.astype(np.int64)
    log.add(
        Fault.UNREADABLE,
        f"{where} {name}",
        expected="a flat list of integers",
        found=f"{str(value)[:60]!r}",
    )
    return None


def same_length(columns: dict[str, Int64], *, where: str, log: FaultLog) -> bool:
    """Whether all columns have one value a position; a fault for the first that has not."""
    sizes = {name: int(column.size) for name, column in columns.items()}
    first = next(iter(sizes))
    for name, size in sizes.items():
        if size != sizes[first]:
            log.add(
                Fault.LENGTHS_DIFFER,
                f"{where} {name}",
                expected=f"{sizes[first]} values, as many as {first}",
                found=size,
            )
            return False
    return True


def zeros_and_ones(mask: Int64, *, name: str, where: str, log: FaultLog) -> bool:
    """Whether a mask holds nothing else; a fault for the first value that is."""
    wrong = np.flatnonzero((mask != 0) & (mask != 1))
    if wrong.size:
        at = int(wrong[0])
        log.add(Fault.MASK_VALUE, f"{where} {name}[{at}]", expected="0 or 1", found=int(mask[at]))
    return not wrong.size


def _is_whole(array: Any) -> bool:  # noqa: ANN401 - numpy of any type
    return array.dtype.kind == "f" and bool(np.all(array == np.floor(array)))
