"""Numbers of two or four bytes as byte planes: the low bytes of all of them, then the next ones.

The high bytes of hidden states and log-probs hold sign and exponent and repeat; apart from the low
bytes, which are noise, zstd finds that. Log-probs that fall along a row are stored as differences
of their bit patterns, modulo 2^16 or 2^32: neighbours have near patterns, and nothing is rounded,
whatever the values are.

Measured on synthetic top-64 log-probs of a vocabulary of 131,072 in documents of a thousand tokens,
and on normal hidden states of 4,096 channels with scales of their own; one thread, MB of plain
bytes a CPU second:

| | plain bytes a token | zstd 1 | compressed | decompressed |
| --- | --- | --- | --- | --- |
| log-probs, float16 as they are | 128 | 101.0 | 152 | 366 |
| log-probs, planes | 128 | 73.3 | 359 | 1222 |
| **log-probs, planes of differences** | **128** | **44.7** | **311** | **1163** |
| ids, int32 | 256 | 120.7 | 153 | 390 |
| **ids, low 16 bits and bit plane** | **136** | **100.1** | **415** | **965** |
| both as lists of Float16 and Int32 | 384 | 222.2 | | |
| hidden, bf16 as they are | 8192 | 6464 | 154 | 511 |
| **hidden, planes** | **8192** | **5644** | **185** | **688** |

Level 3 makes none of the chosen three smaller by 1% and takes two to three times as long.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError

_BITS = 8
Values = npt.NDArray[Any]


def split_planes(values: Values) -> bytes:
    """Planes of an array, C order, lowest byte first.

    >>> split_planes(np.array([[0x0102, 0x0304]], dtype="<u2")).hex()
    '02040103'
    """
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return flat.reshape(-1, values.dtype.itemsize).T.tobytes()


def join_planes(data: bytes, *, dtype: np.dtype[Any], shape: tuple[int, int]) -> Values:
    """The array that was split; read-only.

    Raises:
        ContractError: the data are of another size.
    """
    return _read_only(_codes(data, dtype=dtype, shape=shape).view(dtype))


def split_falling(values: Values) -> bytes:
    """Planes of the differences along each row of [m, width], the first value of it as it is."""
    codes = np.ascontiguousarray(values).view(_code(values.dtype))
    differences = codes.copy()
    differences[:, 1:] -= codes[:, :-1]
    return split_planes(differences)


def join_falling(data: bytes, *, dtype: np.dtype[Any], shape: tuple[int, int]) -> Values:
    """The array that `split_falling` was given; read-only.

    Raises:
        ContractError: the data are of another size.
    """
    codes = _codes(data, dtype=dtype, shape=shape)
    np.cumsum(codes, axis=1, dtype=codes.dtype, out=codes)
    return _read_only(codes.view(dtype))


def _codes(data: bytes, *, dtype: np.dtype[Any], shape: tuple[int, int]) -> Values:
    count = shape[0] * shape[1]
    if len(data) != count * dtype.itemsize:
        raise ContractError(
            f"expected {count * dtype.itemsize} bytes for {shape} of {dtype}, found {len(data)}."
        )
    planes = np.frombuffer(data, dtype=np.uint8).reshape(dtype.itemsize, count)
    codes: Values = planes[-1].astype(_code(dtype))
    for plane in planes[-2::-1]:
        codes <<= _BITS
        codes |= plane
    shaped: Values = codes.reshape(shape)
    return shaped


def _code(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"<u{dtype.itemsize}")


def _read_only(values: Values) -> Values:
    values.flags.writeable = False
    return values
