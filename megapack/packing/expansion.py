"""Groups of rows to documents, in numpy: those of one length go out in input order.

Costs about 70 ns a document, and 40 bytes for each of a million documents at a time.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from megapack.layout.runs import Int32, Int64
from megapack.packing.row_groups import RowGroups, Table

CHUNK = 1 << 20
"""Documents that are laid at a time, unless one step of a group is more."""


class _Steps(NamedTuple):
    """What the rows of each leaf hold, one step a length, in the order documents are given out.

    Attributes:
        size: int64 [S], documents the step gives out.
        each: int64 [S], of them to one row.
        first: int64 [S], where the first of them stands in the plan.
        stride: int64 [S], documents of one row of the leaf.
    """

    size: Int64
    each: Int64
    first: Int64
    stride: Int64


def sort_by_length(lengths: Int32, capacity: int) -> tuple[Int32, Int64]:
    """Stable sort by length.

    Args:
        lengths: int32 [M], in [1, capacity].
        capacity: row length.

    Returns:
        int32 [M], document indices by increasing length, in input order where equal; and
        int64 [capacity + 2], where each length starts in it.
    """
    starts = np.zeros(capacity + 2, dtype=np.int64)
    np.cumsum(np.bincount(lengths, minlength=capacity + 1), out=starts[1:])
    # Stable sorts of 16-bit keys are counting sorts in numpy.
    order = np.argsort((lengths & 0xFFFF).astype(np.uint16), kind="stable").astype(np.int32)
    if capacity > np.iinfo(np.uint16).max:
        high = (lengths >> 16).astype(np.uint16)
        order = order[np.argsort(high[order], kind="stable")]
    return order, starts


def expand(table: Table, leaves: Int64, ordered: Int32, starts: Int64) -> tuple[Int32, Int64]:
    """Give the rows their documents.

    Args:
        table: int64 [5, G], columns of `RowGroups`; together the rows hold every document.
        leaves: int64 [K], groups that rows ended in, in plan order.
        ordered: int32 [M], documents by length.
        starts: int64 [capacity + 2], where each length starts in `ordered`; not needed here.

    Returns:
        int32 [M], documents by row; int64 [rows + 1], offsets of the rows.
    """
    del starts
    groups = RowGroups(table)
    steps, widths = _steps(groups, leaves)
    document = np.empty(ordered.size, dtype=np.int32)
    given = np.concatenate(([0], np.cumsum(steps.size)))
    for low, high in _chunks(given):
        own = slice(low, high)
        size, each = steps.size[own], steps.each[own]
        place = np.arange(given[high] - given[low])
        place -= np.repeat(given[own] - given[low], size)
        row = place // np.repeat(each, size)
        place += np.repeat(steps.first[own], size)
        place += row * np.repeat(steps.stride[own] - each, size)
        document[place] = ordered[given[low] : given[high]]
    offsets = np.zeros(groups.num_rows + 1, dtype=np.int64)
    np.cumsum(np.repeat(widths, groups.number[leaves]), out=offsets[1:])
    return document, offsets


def _steps(groups: RowGroups, leaves: Int64) -> tuple[_Steps, Int64]:
    """Steps of all leaves by (length, leaf), and int64 [K], documents of a row of each leaf."""
    paths, owners = [], []
    node, owner = leaves, np.arange(leaves.size)
    while node.size:
        paths.append(node)
        owners.append(owner)
        node = groups.parent[node]
        grown = node >= 0
        node, owner = node[grown], owner[grown]
    # From the root outwards: the longest documents come first in a row.
    node, owner = np.concatenate(paths[::-1]), np.concatenate(owners[::-1])
    each = groups.each[node]
    widths = np.bincount(owner, weights=each, minlength=leaves.size).astype(np.int64)
    number = groups.number[leaves]
    start = np.cumsum(number * widths) - number * widths
    by_owner = np.argsort(owner, kind="stable")
    before = np.empty_like(each)
    running = np.cumsum(each[by_owner]) - each[by_owner]
    before[by_owner] = running - (np.cumsum(widths) - widths)[owner[by_owner]]
    order = np.lexsort((owner, groups.length[node]))
    owner, each = owner[order], each[order]
    steps = _Steps(
        size=number[owner] * each,
        each=each,
        first=start[owner] + before[order],
        stride=widths[owner],
    )
    return steps, widths


def _chunks(given: Int64) -> Iterator[tuple[int, int]]:
    """Ranges of steps of about `CHUNK` documents."""
    low, last = 0, given.size - 1
    while low < last:
        high = int(np.searchsorted(given, given[low] + CHUNK, side="right")) - 1
        high = min(max(high, low + 1), last)
        yield low, high
        low = high
