"""Supervised runs: half-open integer intervals [start, end), flat as int32 [2R].

A mask over tokens is stored as the starts and ends of its runs: sorted, disjoint, not touching
and not empty, so that equal masks have equal runs. About 0.007 bytes a token.
"""

from typing import Any

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
    return fill_runs(runs, length, off=False, on=True)


def fill_runs(runs: npt.ArrayLike, length: int, *, off: int, on: int) -> npt.NDArray[Any]:
    """An array that holds `on` inside the runs and `off` elsewhere.

    >>> fill_runs([1, 3], 4, off=0, on=-1).tolist()
    [0, -1, -1, 0]

    Args:
        runs: int32 [2R].
        length: n >= the last end.
        off: value outside.
        on: value inside.

    Returns:
        [n], bool when `on` is a bool, int32 otherwise.
    """
    flat = np.asarray(runs).reshape(-1)
    edges = np.empty(flat.size + 2, dtype=np.int64)
    edges[0], edges[1:-1], edges[-1] = 0, flat, length
    kind: npt.DTypeLike = np.bool_ if isinstance(on, bool) else np.int32
    values: npt.NDArray[Any] = np.full(flat.size + 1, off, dtype=kind)
    values[1::2] = on
    return np.repeat(values, edges[1:] - edges[:-1])


def locked(values: npt.ArrayLike) -> Int32:
    """int32, flat and read-only: the array itself when it is all that, else a copy."""
    if (
        isinstance(values, np.ndarray)
        and values.dtype == np.int32
        and values.ndim == 1
        and not values.flags.writeable
    ):
        return values
    array = np.array(values, dtype=np.int32).reshape(-1)
    array.flags.writeable = False
    return array


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
    falls = runs[1:] <= runs[:-1]
    if falls.any():
        at = int(np.flatnonzero(falls)[0])
        raise ContractError(
            f"{where}: expected strictly increasing run edges, found {int(runs[at])} then "
            f"{int(runs[at + 1])} at edge {at}."
        )
    if runs[0] < low or runs[-1] > high:
        raise ContractError(
            f"{where}: expected runs inside [{low}, {high}], found [{int(runs[0])}, "
            f"{int(runs[-1])}]."
        )
