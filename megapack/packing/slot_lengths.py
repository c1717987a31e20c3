"""What every planner asks of its input: slot lengths from 1 to the capacity, at most 2^31 - 1."""

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError
from megapack.layout.runs import Int32

MOST_DOCUMENTS = 2**31 - 1
"""Documents of one plan; their indices are int32."""


def checked_lengths(slot_lengths: npt.ArrayLike, capacity: int, *, where: str) -> Int32:
    """Slot lengths as int32, without a copy when they are that already.

    Args:
        slot_lengths: int [M], padded length of each document.
        capacity: row length; a document of exactly that length fits.
        where: planner that asks, for the message.

    Returns:
        int32 [M].

    Raises:
        ContractError: a length is out of [1, capacity], or there are too many documents.
    """
    lengths = np.asarray(slot_lengths).reshape(-1)
    if lengths.size == 0:
        return np.zeros(0, dtype=np.int32)
    if lengths.dtype.kind not in "iu":
        raise ContractError(f"{where}: expected integer slot lengths, found {lengths.dtype}.")
    if lengths.size > MOST_DOCUMENTS:
        raise ContractError(
            f"{where}: expected at most {MOST_DOCUMENTS} documents in one plan, found "
            f"{lengths.size}. Plan in several parts."
        )
    if int(lengths.min()) < 1 or int(lengths.max()) > capacity:
        first = int(np.flatnonzero((lengths < 1) | (lengths > capacity))[0])
        raise ContractError(
            f"{where}: document {first} has slot length {int(lengths[first])}, "
            f"expected 1 to capacity = {capacity}."
        )
    return np.ascontiguousarray(lengths, dtype=np.int32)
