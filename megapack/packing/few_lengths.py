"""Fewer rows than best-fit-decreasing where documents have few distinct lengths.

With few lengths no greedy order fills rows well (1 to 8% more rows than needed were measured), but
there are few enough patterns for a linear program. Whole rows of its answer are taken; what is
left, less than a row for each length, is packed best-fit-decreasing. The result was at most one
row over the bound on everything tried.

Tried only when it can win: at most `MOST_LENGTHS` lengths, and best-fit-decreasing more than a row
over the bound. The work is limited in knapsack cells, so the same input gives the same plan on a
slow machine; the most it costs is a few seconds.
"""

import numpy as np

from megapack.layout.runs import Int64
from megapack.packing.best_fit import group_rows
from megapack.packing.bounds import lower_bound
from megapack.packing.columns import FractionalPlan, fractional_plan
from megapack.packing.row_groups import RowGroups

MOST_LENGTHS = 128
"""Distinct lengths up to which column generation is tried."""

MOST_CELLS = 1 << 30
"""Knapsack cells (lengths x capacity x rounds), of 5 to 10 ns each."""

MOST_ROUNDS = 400
"""Knapsacks, however small."""


def fewer_rows(groups: RowGroups, starts: Int64, capacity: int) -> RowGroups:
    """A plan of fewer rows, or `groups` when there is none to be had.

    Args:
        groups: plan of best-fit-decreasing.
        starts: int64 [capacity + 2], where each length starts in the sorted documents.
        capacity: row length.

    Returns:
        Groups of rows that hold every document.
    """
    counts = np.diff(starts)
    lengths = np.flatnonzero(counts)
    if lengths.size > MOST_LENGTHS:
        return groups
    bound = lower_bound(counts, capacity)
    if groups.num_rows <= bound + 1:
        return groups
    unit = int(np.gcd.reduce(lengths))
    rounds = min(MOST_ROUNDS, MOST_CELLS // (lengths.size * (capacity // unit)))
    answer = fractional_plan(
        lengths // unit, counts[lengths], capacity // unit, bound=bound, rounds=rounds
    )
    rounded = None if answer is None else _round(answer, lengths, counts, capacity)
    return groups if rounded is None or rounded.num_rows >= groups.num_rows else rounded


def _round(
    answer: FractionalPlan, lengths: Int64, counts: Int64, capacity: int
) -> RowGroups | None:
    """Whole rows of the answer, then the rest; None when rounding took too many documents."""
    rows = np.floor(answer.rows + 1e-9).astype(np.int64)
    left = counts.copy()
    left[lengths] -= (rows[:, None] * answer.patterns).sum(axis=0)
    if left.min() < 0:
        return None
    starts = np.zeros(capacity + 2, dtype=np.int64)
    np.cumsum(left, out=starts[1:])
    used = rows > 0
    whole = _of_patterns(answer.patterns[used], rows[used], lengths, capacity)
    return whole.and_then(RowGroups(group_rows(starts, capacity)))


def _of_patterns(patterns: Int64, rows: Int64, lengths: Int64, capacity: int) -> RowGroups:
    """Rows that hold given patterns, longest documents first."""
    parent, number, space = [], [], []
    which, index = np.nonzero(patterns[:, ::-1])
    index = lengths.size - 1 - index
    each = patterns[which, index]
    before, left = -1, capacity
    for step, pattern in enumerate(which.tolist()):
        if step and which[step - 1] != pattern:
            before, left = -1, capacity
        left -= int(each[step] * lengths[index[step]])
        last = step + 1 == which.size or which[step + 1] != pattern
        parent.append(before)
        number.append(int(rows[pattern]) if last else 0)
        space.append(left)
        before = step
    columns = (parent, lengths[index], each, number, space)
    return RowGroups(np.array(columns, dtype=np.int64))
