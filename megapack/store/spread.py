"""Rows of one step over dp ranks: equal counts, and loads as even as they get.

Longest processing time first, with a bound on the number of rows a rank takes. Costs
O(G log dp) for G rows.
"""

from heapq import heapify, heapreplace

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def spread(costs: Int64, dp_size: int) -> Int64:
    """Owner of each row: costliest first, each to the cheapest rank that still has room.

    Args:
        costs: int64 [G], dp_size divides G.
        dp_size: ranks.

    Returns:
        int64 [G]: a rank for each row, G / dp_size rows a rank.
    """
    share = costs.size // dp_size
    owner = np.empty(costs.size, dtype=np.int64)
    heap = [(0, rank, share) for rank in range(dp_size)]
    heapify(heap)
    full = (int(costs.sum()) + 1, dp_size, 0)
    for row in np.argsort(-costs, kind="stable").tolist():
        load, rank, room = heap[0]
        owner[row] = rank
        after = (load + int(costs[row]), rank, room - 1)
        heapreplace(heap, after if room > 1 else full)
    return owner
