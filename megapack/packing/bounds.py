"""Lower bounds on the number of rows, to say how good a plan is."""

import numpy as np

from megapack.layout.runs import Int64


def lower_bound(counts: Int64, capacity: int) -> int:
    """Rows that no plan can do without: the bound L2 of Martello and Toth.

    For every length k up to half a row: documents longer than capacity - k stand without any
    other of at least k, those longer than half a row stand apart from one another, and what is
    left of k to half a row fills their space before it asks for rows of its own. k = 0 gives the
    sum of the lengths over the capacity.

    >>> lower_bound(np.bincount([5, 5, 5, 3]), 8), lower_bound(np.bincount([2, 6, 8]), 8)
    (3, 2)

    Args:
        counts: int64 [at most capacity + 1], documents of each length.
        capacity: row length.

    Returns:
        The bound; exact integer arithmetic.
    """
    padded = np.zeros(capacity + 1, dtype=np.int64)
    padded[: counts.size] = counts
    number = np.concatenate(([0], np.cumsum(padded)))
    total = np.concatenate(([0], np.cumsum(padded * np.arange(capacity + 1))))
    half = capacity // 2 + 1
    least = np.concatenate(([0], np.flatnonzero(padded[:half])))
    alone = number[capacity + 1] - number[capacity - least + 1]
    long = number[capacity - least + 1] - number[half]
    space = long * capacity - (total[capacity - least + 1] - total[half])
    rest = total[half] - total[least] - space
    rows = alone + long + np.maximum(-(-rest // capacity), 0)
    return int(rows.max())
