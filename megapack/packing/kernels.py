"""The loops of the planners for numba. Imported by `compiled` alone, and only when it pays.

Same plans as the numpy code, bit for bit: the same decisions on the same integers. Set membership
of remaining spaces is a 64-ary tree of bits, three levels deep, so the smallest space that takes a
document is found in about three steps whatever the capacity.
"""

from collections.abc import Callable
from typing import cast

import numba
import numpy as np
from numba.cpython.unsafe import numbers

from megapack.layout.runs import Int32, Int64
from megapack.packing.row_groups import Table

EMPTY = np.uint64(0)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
ONE = np.uint64(1)

Bits = np.ndarray[tuple[int], np.dtype[np.uint64]]
PARENT, LENGTH, EACH, NUMBER, SPACE, OLDER = range(6)
"""Rows of the table of groups: the columns of `RowGroups`, and the next older of equal space."""


lowest_bit = cast("Callable[[np.uint64], int]", numbers.trailing_zeros)


def _compiled[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    return cast("Callable[P, R]", numba.njit(cache=True)(function))


@_compiled
def _bit(position: int) -> np.uint64:
    return ONE << np.uint64(position & 63)


@_compiled
def _from(position: int) -> np.uint64:
    return ALL << np.uint64(position & 63)


@_compiled
def _add(low: Bits, middle: Bits, high: Bits, space: int) -> None:
    word = space >> 6
    low[word] |= _bit(space)
    middle[word >> 6] |= _bit(word)
    high[word >> 12] |= _bit(word >> 6)


@_compiled
def _remove(low: Bits, middle: Bits, high: Bits, space: int) -> None:
    word = space >> 6
    low[word] &= ~_bit(space)
    if low[word] == EMPTY:
        middle[word >> 6] &= ~_bit(word)
        if middle[word >> 6] == EMPTY:
            high[word >> 12] &= ~_bit(word >> 6)


@_compiled
def _next_middle(middle: Bits, high: Bits, word: int) -> int:
    """Smallest index of a middle word of at least `word` that is not empty, -1 when none."""
    top = word >> 6
    if top >= high.shape[0]:
        return -1
    found = high[top] & _from(word)
    while found == EMPTY:
        top += 1
        if top >= high.shape[0]:
            return -1
        found = high[top]
    return (top << 6) + lowest_bit(found)


@_compiled
def _smallest(low: Bits, middle: Bits, high: Bits, least: int) -> int:
    """Smallest member of at least `least`, -1 when there is none."""
    word = least >> 6
    found = low[word] & _from(least)
    if found != EMPTY:
        return (word << 6) + lowest_bit(found)
    word += 1
    group = word >> 6
    if group >= middle.shape[0]:
        return -1
    found = middle[group] & _from(word)
    if found == EMPTY:
        group = _next_middle(middle, high, group + 1)
        if group < 0:
            return -1
        found = middle[group]
    word = (group << 6) + lowest_bit(found)
    return (word << 6) + lowest_bit(low[word])


@_compiled
def _wider(table: Table) -> Table:
    grown = np.empty((table.shape[0], table.shape[1] * 2), np.int64)
    for row in range(table.shape[0]):
        for column in range(table.shape[1]):
            grown[row, column] = table[row, column]
    return grown


@_compiled
def sort_by_length(lengths: Int32, capacity: int) -> tuple[Int32, Int64]:
    """Counting sort.

    Args:
        lengths: int32 [M], in [1, capacity].
        capacity: row length.

    Returns:
        int32 [M], document indices by increasing length, in input order where equal; and
        int64 [capacity + 2], where each length starts in it.
    """
    starts = np.zeros(capacity + 2, np.int64)
    for length in lengths:
        starts[length + 1] += 1
    for length in range(1, capacity + 2):
        starts[length] += starts[length - 1]
    following = starts.copy()
    ordered = np.empty(lengths.shape[0], np.int32)
    for document in range(lengths.shape[0]):
        length = lengths[document]
        ordered[following[length]] = document
        following[length] += 1
    return ordered, starts


@_compiled
def group_rows(starts: Int64, capacity: int) -> Table:
    """Best-fit-decreasing over lengths; see `best_fit.group_rows`.

    Args:
        starts: int64 [capacity + 2], where each length starts in the sorted documents.
        capacity: row length.

    Returns:
        int64 [5, G], the columns of `RowGroups`.
    """
    low = np.zeros((capacity >> 6) + 1, np.uint64)
    middle = np.zeros((capacity >> 12) + 1, np.uint64)
    high = np.zeros((capacity >> 18) + 1, np.uint64)
    youngest = np.full(capacity + 1, -1, np.int64)
    table = np.empty((6, 1024), np.int64)
    groups = 0
    for length in range(capacity, 0, -1):
        left = starts[length + 1] - starts[length]
        while left > 0:
            if groups == table.shape[1]:
                table = _wider(table)
            best = _smallest(low, middle, high, length)
            space = capacity if best < 0 else best
            each = space // length
            taken = left // each
            if taken == 0:
                taken, each = 1, left
            parent = -1
            if best >= 0:
                parent = youngest[best]
                taken = min(taken, table[NUMBER, parent])
                table[NUMBER, parent] -= taken
                if table[NUMBER, parent] == 0:
                    youngest[best] = table[OLDER, parent]
                    if youngest[best] < 0:
                        _remove(low, middle, high, best)
            space -= each * length
            table[PARENT, groups] = parent
            table[LENGTH, groups] = length
            table[EACH, groups] = each
            table[NUMBER, groups] = taken
            table[SPACE, groups] = space
            if space > 0:
                if youngest[space] < 0:
                    _add(low, middle, high, space)
                table[OLDER, groups] = youngest[space]
                youngest[space] = groups
            groups += 1
            left -= taken * each
    return table[:OLDER, :groups].copy()


@_compiled
def _depth(groups: Table) -> int:
    """Groups on the longest path."""
    depth = np.empty(groups.shape[1], np.int64)
    most = 0
    for group in range(groups.shape[1]):
        parent = groups[PARENT, group]
        depth[group] = 1 if parent < 0 else depth[parent] + 1
        most = max(most, depth[group])
    return most


@_compiled
def expand(groups: Table, leaves: Int64, ordered: Int32, starts: Int64) -> tuple[Int32, Int64]:
    """Give the rows their documents; see `expansion.expand`.

    Args:
        groups: int64 [5, G], columns of `RowGroups`.
        leaves: int64, groups that rows ended in, in plan order.
        ordered: int32 [M], documents by length.
        starts: int64 [capacity + 2], where each length starts in `ordered`.

    Returns:
        int32 [M], documents by row; int64 [rows + 1], offsets of the rows.
    """
    rows = 0
    for leaf in leaves:
        rows += groups[NUMBER, leaf]
    offsets = np.zeros(rows + 1, np.int64)
    document = np.empty(ordered.shape[0], np.int32)
    following = starts.copy()
    path = np.empty(_depth(groups), np.int64)
    row = 0
    filled = 0
    for leaf in leaves:
        depth = 0
        node = leaf
        while node >= 0:
            path[depth] = node
            depth += 1
            node = groups[PARENT, node]
        for _ in range(groups[NUMBER, leaf]):
            for step in range(depth - 1, -1, -1):
                length = groups[LENGTH, path[step]]
                first = following[length]
                each = groups[EACH, path[step]]
                for document_of_length in range(first, first + each):
                    document[filled] = ordered[document_of_length]
                    filled += 1
                following[length] = first + each
            row += 1
            offsets[row] = filled
    return document, offsets


@_compiled
def close_rows(lengths: Int32, capacity: int, most_open: int) -> tuple[Int32, Int32, int]:
    """Best fit in one pass over a bounded number of open rows; see `stream`.

    Args:
        lengths: int32 [M], slot lengths in reading order.
        capacity: row length.
        most_open: rows that may be open between documents.

    Returns:
        int32 [M], number of the row of each document by opening; int32 [M], of which the first
        `rows` count: rows in the order in which they closed; and `rows`.
    """
    documents = lengths.shape[0]
    row_of = np.empty(documents, np.int32)
    closed = np.empty(documents, np.int32)
    still_open = np.empty(most_open + 1, np.int64)
    num_open = 0
    opened = 0
    num_closed = 0
    for document in range(documents):
        length = np.int64(lengths[document])
        low, high = 0, num_open
        while low < high:
            half = (low + high) >> 1
            if still_open[half] >> 32 < length:
                low = half + 1
            else:
                high = half
        if low < num_open:
            space, number = still_open[low] >> 32, still_open[low] & 0xFFFFFFFF
            taken = low
        else:
            space, number = np.int64(capacity), np.int64(opened)
            opened += 1
            taken = num_open
            num_open += 1
        row_of[document] = number
        space -= length
        key = (space << 32) | number
        # The row moves down to where its smaller space belongs.
        while taken > 0 and still_open[taken - 1] > key:
            still_open[taken] = still_open[taken - 1]
            taken -= 1
        still_open[taken] = key
        if space == 0 or num_open > most_open:
            closed[num_closed] = still_open[0] & 0xFFFFFFFF
            num_closed += 1
            num_open -= 1
            for place in range(num_open):
                still_open[place] = still_open[place + 1]
    for place in range(num_open):
        closed[num_closed] = still_open[place] & 0xFFFFFFFF
        num_closed += 1
    return row_of, closed, num_closed
