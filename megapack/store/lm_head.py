"""A teacher's LM head beside its payload: what turns hidden states into logits.

Rows of the real vocabulary in safetensors files of `SHARD_ROWS` rows each, whatever the teacher's
tensor parallelism was: `lm_head/<teacher>/<first row>.safetensors`, one tensor `weight` in the
teacher's own dtype. Each file's SHA-256 is in the manifest as that of every part; one digest over
all of them is in `PayloadInfo.lm_heads`. A reader of a row range reads the files that hold it,
each whole and checked, and keeps none.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, TensorSpec, deserialize, serialize

from megapack.errors import ConfigError, ContractError, DataError
from megapack.records.digest import digest_of
from megapack.records.payload import PayloadDtype
from megapack.store.location import Location
from megapack.store.manifest import Part
from megapack.store.named_files import put_named, read_named
from megapack.store.schema import LmHeadInfo

Raw = npt.NDArray[Any]
"""Values as they are stored: bfloat16 as uint16 bits."""

SHARD_ROWS = 8192
_FOLDER = "lm_head"
_TENSOR = "weight"
_NAMES = {PayloadDtype.BF16: "bfloat16", PayloadDtype.FP16: "float16", PayloadDtype.FP32: "float32"}
_CODES = {"BF16": PayloadDtype.BF16, "F16": PayloadDtype.FP16, "F32": PayloadDtype.FP32}


def write_lm_head(
    location: Location, rows: Iterable[Raw], dtype: PayloadDtype, *, teacher: int = 0
) -> tuple[Part, ...]:
    """Write an LM head; `lm_head_info` of its parts belongs into `PayloadInfo`.

    Args:
        location: the store.
        rows: [r, H] of `dtype.numpy`, rows of the real vocabulary in order; r may vary.
        dtype: of the values.
        teacher: index of the teacher.

    Returns:
        Parts, in the order of the rows. Memory is bounded by one file and its encoded copy.

    Raises:
        ContractError: no rows, or rows of another dtype or width than the first.
        StoreError: the store failed.
    """
    parts: list[Part] = []
    first = 0
    for block in _blocks(rows, dtype):
        name = f"{_FOLDER}/{teacher}/{first:08d}.safetensors"
        counts = {"first_row": first, "num_rows": block.shape[0], "width": block.shape[1]}
        parts.append(put_named(location, name, _encoded(block, dtype), counts=counts))
        first += block.shape[0]
    if not parts:
        raise ContractError(f"LM head of teacher {teacher}: expected rows, found none.")
    return tuple(parts)


def lm_head_info(parts: Sequence[Part], dtype: PayloadDtype) -> LmHeadInfo:
    """What a manifest says of an LM head that was written.

    Args:
        parts: of one LM head, in the order of its rows.
        dtype: of its values.
    """
    rows = sum(part.counts["num_rows"] for part in parts)
    width = parts[0].counts["width"]
    content = {"files": [part.sha256 for part in parts], "dtype": dtype.value, "width": width}
    return LmHeadInfo(digest=digest_of(content), dtype=dtype, vocab_size=rows, width=width)


def lm_head_parts(parts: Iterable[Part], teacher: int) -> tuple[Part, ...]:
    """Parts of a version that are one teacher's LM head, in the order of its rows."""
    prefix = f"{_FOLDER}/{teacher}/"
    return tuple(sorted((one for one in parts if one.name.startswith(prefix)), key=_first_row))


class LmHeadReader:
    """Reads rows of one teacher's LM head."""

    def __init__(self, location: Location, parts: Sequence[Part], info: LmHeadInfo) -> None:
        """Take the files.

        Args:
            location: the store.
            parts: of this LM head, in the order of its rows.
            info: what the manifest says of it.

        Raises:
            DataError: these are not the files that `info` is of.
        """
        self._location = location
        self._parts = tuple(parts)
        self._info = info
        if not parts or lm_head_info(parts, info.dtype) != info:
            raise DataError(
                f"{location.uri}: expected the LM head of digest {info.digest} with "
                f"{info.vocab_size} rows, found {len(parts)} files that make another one. Extract "
                "the payload anew."
            )

    @property
    def dtype(self) -> PayloadDtype:
        """Of the values."""
        return self._info.dtype

    @property
    def vocab_size(self) -> int:
        """V, real vocabulary only."""
        return self._info.vocab_size

    @property
    def width(self) -> int:
        """H."""
        return self._info.width

    def rows(self, first: int, last: int) -> Raw:
        """Rows of a range. Reads the files that hold them, one after another.

        Args:
            first: first vocabulary id.
            last: one past the last.

        Returns:
            [last - first, H] of `dtype.numpy`, bfloat16 as uint16 bits.

        Raises:
            ConfigError: the range is not inside the vocabulary.
            DataError: a file was altered.
            StoreError: the store failed.
        """
        if not 0 <= first <= last <= self.vocab_size:
            raise ConfigError(
                f"LM head: expected a range of rows in [0, {self.vocab_size}], found {first} to "
                f"{last}."
            )
        chosen = np.empty((last - first, self.width), dtype=self.dtype.numpy)
        for part in self._parts:
            start = _first_row(part)
            low, high = max(first, start), min(last, start + part.counts["num_rows"])
            if low < high:
                chosen[low - first : high - first] = self._decoded(part)[low - start : high - start]
        return chosen

    def _decoded(self, part: Part) -> Raw:
        data = read_named(self._location, part)
        where = f"{self._location.uri}/{part.key} ({part.name})"
        try:
            tensor = dict(deserialize(data))[_TENSOR]  # type: ignore[no-untyped-call]
        except (SafetensorError, KeyError) as error:
            raise DataError(
                f"{where}: expected a safetensors file with a tensor {_TENSOR!r}: {error}"
            ) from error
        shape = [part.counts["num_rows"], self.width]
        if (_CODES.get(tensor["dtype"]), list(tensor["shape"])) != (self.dtype, shape):
            raise DataError(
                f"{where}: expected {self.dtype.value} {shape}, found {tensor['dtype']} "
                f"{tensor['shape']}."
            )
        values: Raw = np.frombuffer(tensor["data"], dtype=self.dtype.numpy).reshape(shape)
        return values


def _blocks(rows: Iterable[Raw], dtype: PayloadDtype) -> Iterator[Raw]:
    """Blocks of `SHARD_ROWS` rows, the last one shorter."""
    held: list[Raw] = []
    count = 0
    width: int | None = None
    for given in rows:
        width = given.shape[1] if width is None else width
        if given.dtype != dtype.numpy or given.shape[1:] != (width,):
            raise ContractError(
                f"LM head: expected rows of {width} values of {dtype.numpy}, found "
                f"{given.shape} of {given.dtype}."
            )
        rest = given
        while count + len(rest) >= SHARD_ROWS:
            taken = SHARD_ROWS - count
            yield np.concatenate([*held, rest[:taken]])
            held, count, rest = [], 0, rest[taken:]
        if len(rest):
            # A copy, because the caller may reuse its buffer.
            held.append(rest.copy())
            count += len(rest)
    if held:
        yield np.concatenate(held)


def _encoded(block: Raw, dtype: PayloadDtype) -> bytes:
    """One safetensors file; `block` outlives the call, as the library asks."""
    spec = TensorSpec(
        dtype=_NAMES[dtype],
        shape=list(block.shape),
        data_ptr=block.ctypes.data,
        data_len=block.nbytes,
    )
    return bytes(serialize({_TENSOR: spec}))


def _first_row(part: Part) -> int:
    return part.counts["first_row"]
