"""Which positions of a row a context parallel rank owns.

Zigzag: a stretch is cut into 2*cp equal chunks and rank r owns chunks r and 2*cp-1-r, so that
under a causal mask every rank has the same work. `PER_SEGMENT` cuts each slot by itself (what
megatron-core does for THD rows); `PER_ROW` cuts the row as a whole. The tail of a row, which no
slot covers, is cut like one more slot under `PER_SEGMENT`.
"""

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from megapack.errors import ConfigError
from megapack.layout.runs import Int64


class CpBalance(StrEnum):
    """What the zigzag is laid over."""

    PER_SEGMENT = "per_segment"
    PER_ROW = "per_row"


def zigzag_index(cu_seqlens_padded: npt.ArrayLike, *, cp_size: int, cp_rank: int) -> Int64:
    """Positions that one context parallel rank owns, in its local order.

    >>> zigzag_index([0, 8, 12], cp_size=2, cp_rank=0).tolist()
    [0, 1, 6, 7, 8, 11]
    >>> zigzag_index([0, 8, 12], cp_size=2, cp_rank=1).tolist()
    [2, 3, 4, 5, 9, 10]

    Args:
        cu_seqlens_padded: int [N+1], slot offsets; the last one is the number of positions.
        cp_size: ranks that share the row.
        cp_rank: rank in [0, cp_size).

    Returns:
        int64 [T / cp_size].

    Raises:
        ConfigError: a slot is not a multiple of 2*cp_size, or the rank is out of range.
    """
    offsets = np.asarray(cu_seqlens_padded, dtype=np.int64)
    if not 0 <= cp_rank < cp_size:
        raise ConfigError(f"cp_rank = {cp_rank}, expected 0 <= cp_rank < cp_size = {cp_size}.")
    if cp_size == 1:
        return np.arange(offsets[-1], dtype=np.int64)
    slots = np.diff(offsets)
    bad = np.flatnonzero(slots % (2 * cp_size))
    if bad.size:
        raise ConfigError(
            f"slot {int(bad[0])} is {int(slots[bad[0]])} positions long, expected a multiple of "
            f"2*cp = {2 * cp_size}. Pack for cp {cp_size}, or run with a cp whose 2*cp divides it."
        )
    chunk = slots // (2 * cp_size)
    starts = np.stack(
        (offsets[:-1] + cp_rank * chunk, offsets[:-1] + (2 * cp_size - 1 - cp_rank) * chunk), axis=1
    ).ravel()
    counts = np.repeat(chunk, 2)
    ends = np.cumsum(counts)
    local = np.arange(ends[-1] if ends.size else 0, dtype=np.int64)
    index: Int64 = local + np.repeat(starts - (ends - counts), counts)
    return index
