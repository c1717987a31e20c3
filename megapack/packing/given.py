"""Keep the rows that a source already has: the documents of one record become one row.

For `.jsonl.packed` records that somebody packed on purpose. A record that does not fit is placed
not in part: all its documents come back, so that the caller counts them with a reason.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError
from megapack.layout.runs import Int32
from megapack.packing.row_plan import RowPlan
from megapack.packing.slot_lengths import checked_lengths


class GivenRows(NamedTuple):
    """A plan, and what has no row.

    Attributes:
        plan: rows in the order of the records.
        not_placed: int32 [K], documents of records that do not fit, in input order.
    """

    plan: RowPlan
    not_placed: Int32


def plan_as_given(record: npt.ArrayLike, slot_lengths: npt.ArrayLike, capacity: int) -> GivenRows:
    """One row a record.

    >>> given = plan_as_given([0, 0, 1, 1, 2], [4, 4, 4, 5, 8], 8)
    >>> [given.plan.row(r).tolist() for r in range(given.plan.num_rows)], given.not_placed.tolist()
    ([[0, 1], [4]], [2, 3])

    Args:
        record: int [M], number of the record each document comes from; those of one record stand
            together.
        slot_lengths: int [M], padded length of each document, in [1, capacity].
        capacity: row length; a record of exactly that length fits.

    Returns:
        The rows, and the documents of records that do not fit.

    Raises:
        ContractError: a record's documents stand apart, the lengths of the arguments differ, or a
            length is out of range.
    """
    lengths = checked_lengths(slot_lengths, capacity, where="plan_as_given")
    records = np.asarray(record, dtype=np.int64).reshape(-1)
    if records.size != lengths.size:
        raise ContractError(
            f"plan_as_given: expected one record number a document, found {records.size} for "
            f"{lengths.size} documents."
        )
    if lengths.size == 0:
        empty = np.zeros(0, dtype=np.int32)
        return GivenRows(RowPlan.of_widths(empty, np.zeros(0, np.int64)), empty)
    starts = np.flatnonzero(np.concatenate(([True], records[1:] != records[:-1])))
    numbers = records[starts]
    repeated = np.flatnonzero(np.bincount(np.unique(numbers, return_inverse=True)[1]) > 1)
    if repeated.size:
        raise ContractError(
            f"plan_as_given: expected the documents of a record to stand together, found record "
            f"{int(np.unique(numbers)[repeated[0]])} in more than one place."
        )
    widths = np.diff(np.concatenate((starts, [lengths.size])))
    fits = np.add.reduceat(lengths.astype(np.int64), starts) <= capacity
    placed = np.repeat(fits, widths)
    return GivenRows(
        RowPlan.of_widths(np.flatnonzero(placed).astype(np.int32), widths[fits]),
        np.flatnonzero(~placed).astype(np.int32),
    )
