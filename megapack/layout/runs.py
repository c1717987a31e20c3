"""Supervised runs: half-open integer intervals [start, end), flat as int32 [2R].

A mask over tokens is stored as the starts and ends of its runs: sorted, disjoint, not touching
and not empty, so that equal masks have equal runs. About 0.007 bytes a token.
"""

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def runs_of_mask(mask: npt.ArrayLike) -> Int32:
    """Runs of True in a mask.

    >>> runs_of_mask([False, True, True, False, True]).tolist()
    [1, 3, 4, 5]

    Args:
        mask: bool [n], or numbers that are all 0 or 1.

    Returns:
        int32 [2R]: start and end of each run.

    Raises:
        ContractError: a value is neither 0 nor 1, such as a pad id in a mask padded by mistake.
    """
    flat = np.asarray(mask)
    if flat.dtype != np.bool_:
        odd = np.flatnonzero((flat != 0) & (flat != 1))
        if odd.size:
            raise ContractError(
                f"mask: expected 0 and 1 only, found {flat[odd[0]]} at {odd[0]} of {flat.size}. "
                "Pad a mask with 0."
            )
        flat = flat.astype(np.bool_)
    padded = np.concatenate(([False], flat, [False]))
    return np.flatnonzero(padded[1:] != padded[:-1]).astype(np.int32)


def mask_of_runs(runs: npt.ArrayLike, length: int) -> Bool:
    """Mask of the given length that is True inside the runs.

    >>> mask_of_runs([1, 3], 4).tolist()
    [False, True, True, False]

    Args:
        runs: int32 [2R].
        length: n >= the last end.

    Returns:
        bool [n].
    """
    edges = np.zeros(length + 1, dtype=np.int8)
    flat = np.asarray(runs, dtype=np.int64)
    edges[flat[0::2]] += 1
    edges[flat[1::2]] -= 1
    return np.cumsum(edges[:-1], dtype=np.int8).astype(np.bool_)


def count_targets(runs: npt.ArrayLike) -> int:
    """Number of positions inside the runs.

    This is the one function that counts target tokens, for packing, training, evaluation and
    reports.

    >>> count_targets([1, 3, 4, 5])
    3
    """
    flat = np.asarray(runs, dtype=np.int64)
    return int((flat[1::2] - flat[0::2]).sum())


def check_runs(runs: Int32, *, low: int, high: int, where: str) -> None:
    """Check that runs are sorted, disjoint, not touching, not empty and inside [low, high].

    Args:
        runs: int32 [2R].
        low: smallest allowed start.
        high: largest allowed end.
        where: owner and field, for the message.

    Raises:
        ContractError: the first violation found, with its index and numbers.
    """
    if runs.ndim != 1 or runs.size % 2:
        raise ContractError(f"{where}: expected int32 [2R], found shape {runs.shape}.")
    if runs.size == 0:
        return
    steps = np.diff(runs)
    if (steps <= 0).any():
        at = int(np.flatnonzero(steps <= 0)[0])
        raise ContractError(
            f"{where}: expected strictly increasing run edges, found {int(runs[at])} then "
            f"{int(runs[at + 1])} at edge {at}."
        )
    if runs[0] < low or runs[-1] > high:
        raise ContractError(
            f"{where}: expected runs inside [{low}, {high}], found [{int(runs[0])}, "
            f"{int(runs[-1])}]."
        )
