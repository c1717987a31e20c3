"""An order of documents that follows from a seed and their ids alone.

Document ids are digests, so their digits are mixed with the seed (the finaliser of SplitMix64)
instead of being digested again: about 0.1 us a document.
"""

from collections.abc import Sequence
from string import hexdigits
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError
from megapack.layout.runs import Int64

ID_DIGITS = 32

UInt64 = npt.NDArray[np.uint64]


class IdHalves(NamedTuple):
    """Ids of M documents as numbers, 16 bytes each.

    Attributes:
        high: uint64 [M], first 16 hex digits.
        low: uint64 [M], last 16 hex digits.
    """

    high: UInt64
    low: UInt64


def hash_order(document_ids: Sequence[str] | IdHalves, seed: int) -> Int64:
    """Documents in the order of their hashes.

    Args:
        document_ids: M ids of 32 hex digits, or their halves.
        seed: any other seed gives another order.

    Returns:
        int64 [M], indices of documents. Equal ids stand together, in input order: whatever is
        taken from the front is the same set of ids for any order of the input.

    Raises:
        ContractError: an id is not 32 hex digits.
    """
    high, low = halves_of(document_ids)
    start = np.array([seed % 2**64, seed // 2**64 % 2**64], dtype=np.uint64)
    mixed = _mix(start)
    key = _mix(_mix(high ^ mixed[0]) ^ low ^ mixed[1])
    return np.lexsort((low, high, key)).astype(np.int64)


def halves_of(document_ids: Sequence[str] | IdHalves) -> IdHalves:
    """Ids as numbers.

    Raises:
        ContractError: an id is not 32 hex digits.
    """
    if isinstance(document_ids, IdHalves):
        return document_ids
    if not document_ids:
        return IdHalves(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    joined = "".join(document_ids)
    try:
        if set(map(len, document_ids)) != {ID_DIGITS}:
            raise ValueError
        halves = np.frombuffer(bytes.fromhex(joined), dtype=">u8")
        if halves.size != 2 * len(document_ids):
            raise ValueError
    except ValueError:
        wrong = next((i for i in document_ids if not _is_id(i)), "")
        raise ContractError(
            f"hash_order: expected document ids of {ID_DIGITS} hex digits, found {wrong!r}."
        ) from None
    return IdHalves(halves[0::2].astype(np.uint64), halves[1::2].astype(np.uint64))


def _is_id(text: str) -> bool:
    return len(text) == ID_DIGITS and set(text) <= set(hexdigits)


def _mix(bits: UInt64) -> UInt64:
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
