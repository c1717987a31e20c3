"""Moving per-token values between documents and rows: `place`, its inverse `unplace`, `shift_left`.

A `TokenField` names one token-aligned or target-aligned value (ids, labels, masks, routed
experts, teacher rows). Every field goes through the same two functions, so that fields cannot
drift apart. Letters: N segments, T = row_length, m = positions of one document.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError
from megapack.layout.pack_layout import PackLayout

AnyArray = npt.NDArray[Any]
PadRule = int | float | bool | Callable[[int], AnyArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenField:
    """One value per position.

    Attributes:
        name: for messages.
        dtype: numpy dtype of the placed array.
        pad: what padding positions hold: a scalar, or a function from a count of positions to an
            array of that many values.
        trailing: shape of one position's value, () for a scalar.
    """

    name: str
    dtype: npt.DTypeLike
    pad: PadRule
    trailing: tuple[int, ...] = ()


def place(field: TokenField, values: Sequence[npt.ArrayLike], layout: PackLayout) -> AnyArray:
    """Lay the values of a row's documents into its slots.

    Args:
        field: name, dtype and pad rule.
        values: N arrays [lengths[i], *trailing], in segment order.
        layout: the row's geometry.

    Returns:
        array [T, *trailing] of `field.dtype`; padding and tail hold the pad value.

    Raises:
        ContractError: the number of arrays or one of their lengths differs from the layout.
    """
    if len(values) != layout.num_segments:
        raise ContractError(
            f"place({field.name}): expected {layout.num_segments} arrays, one a segment, found "
            f"{len(values)}."
        )
    row = _padding(field, layout.row_length)
    for i, (start, length, value) in enumerate(
        zip(layout.slot_starts.tolist(), layout.lengths.tolist(), values, strict=True)
    ):
        array = np.asarray(value, dtype=field.dtype)
        if array.shape != (length, *field.trailing):
            raise ContractError(
                f"place({field.name}): segment {i}: expected shape {(length, *field.trailing)}, "
                f"found {array.shape}."
            )
        row[start : start + length] = array
    return row


def unplace(row: AnyArray, layout: PackLayout) -> list[AnyArray]:
    """Take the real positions of each segment out of a row: the inverse of `place`.

    Args:
        row: array [T, ...].
        layout: the row's geometry.

    Returns:
        N views [lengths[i], ...], in segment order.

    Raises:
        ContractError: the row is not T long.
    """
    if row.shape[0] != layout.row_length:
        raise ContractError(
            f"unplace: expected {layout.row_length} positions, found {row.shape[0]}."
        )
    return [
        row[start : start + length]
        for start, length in zip(layout.slot_starts.tolist(), layout.lengths.tolist(), strict=True)
    ]


def shift_left(values: AnyArray, layout: PackLayout, *, by: int, fill: PadRule) -> AnyArray:
    """Values of later positions of the same document.

    >>> from megapack.layout.granularity import Granularity
    >>> one = Granularity(segment=1, row=1)
    >>> layout = PackLayout(row_length=6, lengths=np.array([3, 2], np.int32), granularity=one)
    >>> shift_left(np.array([5, 6, 7, 8, 9, 0]), layout, by=1, fill=-1)
    array([ 6,  7, -1,  9, -1, -1])

    Args:
        values: array [T, ...].
        layout: the row's geometry.
        by: how many positions later, at least 1.
        fill: what stands where the document has no such position, at padding and in the tail.

    Returns:
        array [T, ...] of the same dtype: position p holds the value of position p + by.
    """
    shifted = _padding(
        TokenField(name="shift", dtype=values.dtype, pad=fill, trailing=values.shape[1:]),
        layout.row_length,
    )
    source = np.arange(by, layout.row_length)
    segments, real = layout.segment_ids(), ~layout.padding_mask()
    # A slot's padding has the slot's number but is no later token of the document.
    inside = source[(segments[source] == segments[source - by]) & real[source]]
    shifted[inside - by] = values[inside]
    return shifted


def _padding(field: TokenField, length: int) -> AnyArray:
    shape = (length, *field.trailing)
    if callable(field.pad):
        return np.array(field.pad(length), dtype=field.dtype).reshape(shape)
    return np.full(shape, field.pad, dtype=field.dtype)
