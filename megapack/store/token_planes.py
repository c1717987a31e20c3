"""Token ids in two columns: the low 16 bits of each, and what lies above them, a bit a token.

`tokens` holds uint16, little-endian. `tokens_high` is empty where the vocabulary has at most 65,536
ids, and otherwise holds ceil(log2(vocab_size)) - 16 planes, one after another, each with one bit
of every token, eight to a byte, the first token in the lowest bit. Ids above 65,535 are rare words
(5% of English and code with a vocabulary of 131,072), so that a plane is nearly free, while 32-bit
ids make zstd spend bits on bytes that never change.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

from megapack.errors import ContractError
from megapack.layout.runs import Int32
from megapack.store.ragged import list_series

_LOW = np.dtype("<u2")
_LOW_BITS = 16


def split_tokens(tokens: Int32, *, vocab_size: int) -> tuple[bytes, bytes]:
    """Both columns' value for one row.

    >>> low, high = split_tokens(np.array([1, 65_538, 3], dtype=np.int32), vocab_size=131_072)
    >>> list(low), list(high)
    ([1, 0, 2, 0, 3, 0], [2])

    Args:
        tokens: int32 [n].
        vocab_size: sets the number of planes.

    Raises:
        ContractError: an id is negative or has more bits than the vocabulary needs.
    """
    planes = num_planes(vocab_size)
    limit = 1 << (_LOW_BITS + planes)
    if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < limit:
        raise ContractError(
            f"tokens: expected ids in [0, {limit}) with a vocabulary of {vocab_size}, found "
            f"{int(tokens.min())} to {int(tokens.max())}."
        )
    high = b"".join(
        np.packbits(tokens >> (_LOW_BITS + plane) & 1, bitorder="little").tobytes()
        for plane in range(planes)
    )
    return tokens.astype(_LOW).tobytes(), high


def join_tokens(low: bytes, high: bytes, *, out: Int32) -> None:
    """Write the ids of one row.

    Args:
        low: value of `tokens`.
        high: value of `tokens_high`.
        out: int32 [n], n the number of tokens expected.

    Raises:
        ContractError: another number of tokens, or planes of another length.
    """
    values = np.frombuffer(low, dtype=_LOW) if len(low) % _LOW.itemsize == 0 else None
    if values is None or values.size != out.size:
        raise ContractError(
            f"tokens: expected {out.size}, the sum of the slots, found "
            f"{len(low) / _LOW.itemsize:g}."
        )
    stride = -(-out.size // 8)
    planes, rest = divmod(len(high), stride) if stride else (0, len(high))
    if rest or planes > _LOW_BITS - 1:
        raise ContractError(
            f"tokens_high: expected planes of {stride} bytes for {out.size} tokens, found "
            f"{len(high)} bytes."
        )
    out[:] = values
    packed = np.frombuffer(high, dtype=np.uint8).reshape(planes, stride)
    for plane in range(planes):
        bits = np.take(_table(_LOW_BITS + plane), packed[plane], axis=0, mode="clip")
        np.bitwise_or(out, bits.reshape(-1)[: out.size], out=out)


def num_planes(vocab_size: int) -> int:
    """Bits of the largest id above the sixteenth.

    >>> [num_planes(size) for size in (1, 65_536, 65_537, 131_072, 152_064)]
    [0, 0, 1, 1, 2]
    """
    return max(0, (vocab_size - 1).bit_length() - _LOW_BITS)


def token_lists(frame: pl.DataFrame) -> pl.Series:
    """Token ids as List(Int32), for queries such as `.list.contains(token_id)`.

    Args:
        frame: has the columns `tokens` and `tokens_high`.

    Returns:
        Column `tokens`, one list a row.
    """
    rows = []
    for low, high in frame.select("tokens", "tokens_high").iter_rows():
        row: npt.NDArray[np.int32] = np.empty(len(low) // _LOW.itemsize, dtype=np.int32)
        join_tokens(low, high, out=row)
        rows.append(row)
    return list_series("tokens", rows)


@lru_cache(maxsize=16)
def _table(bit: int) -> Int32:
    """int32 [256, 8]: the bits of each byte value, lowest first, moved to `bit`.

    One look-up for eight tokens is three times as fast as unpacking and shifting.
    """
    values = np.arange(256, dtype=np.uint8)[:, None]
    return np.unpackbits(values, axis=1, bitorder="little").astype(np.int32) << bit
