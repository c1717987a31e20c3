"""The best patterns of one row for given values of the lengths: an unbounded knapsack in numpy.

Values are integers, so the answer is exact and the same on every machine. Cost: one pass over
lengths x capacity cells, about 5 ns each, and a byte of memory for each.
"""

import numpy as np

from megapack.layout.runs import Bool, Int64


def best_patterns(values: Int64, lengths: Int64, capacity: int, *, most: int) -> Int64:
    """Patterns of high value, the best one first.

    Candidates are, for every length, the best pattern that holds it.

    Args:
        values: int64 [m], not negative.
        lengths: int64 [m], in [1, capacity].
        capacity: row length.
        most: patterns wanted.

    Returns:
        int64 [P, m], documents of each length; P <= most, no pattern twice.
    """
    best, used = _fill(values, lengths, capacity)
    worth = values + best[capacity - lengths]
    chosen = np.argsort(-worth, kind="stable")[:most]
    patterns: dict[tuple[int, ...], None] = {}
    for index in chosen.tolist():
        pattern = _backtrack(used, lengths, capacity - int(lengths[index]))
        pattern[index] += 1
        patterns.setdefault(tuple(pattern))
    return np.array(list(patterns), dtype=np.int64)


def _fill(values: Int64, lengths: Int64, capacity: int) -> tuple[Int64, Bool]:
    """Best value of every capacity: int64 [capacity + 1]; where a length raised it: [m, same]."""
    best = np.zeros(capacity + 1, dtype=np.int64)
    used = np.zeros((lengths.size, capacity + 1), dtype=np.bool_)
    for index, (value, length) in enumerate(zip(values.tolist(), lengths.tolist(), strict=True)):
        if value == 0:
            continue
        turns = -(-(capacity + 1) // length)
        paid = value * np.arange(turns)
        padded = np.zeros(turns * length, dtype=np.int64)
        padded[: capacity + 1] = best
        # Columns are capacities equal modulo the length: k more documents stand k rows below.
        table = padded.reshape(turns, length) - paid[:, None]
        if length < turns:
            table = np.maximum.accumulate(np.ascontiguousarray(table.T), axis=1).T
        else:
            np.maximum.accumulate(table, axis=0, out=table)
        raised = (table + paid[:, None]).reshape(-1)[: capacity + 1]
        np.greater(raised, best, out=used[index])
        best = raised
    return best, used


def _backtrack(used: Bool, lengths: Int64, space: int) -> list[int]:
    pattern = [0] * lengths.size
    for index in range(lengths.size - 1, -1, -1):
        length = int(lengths[index])
        while used[index, space]:
            pattern[index] += 1
            space -= length
    return pattern
