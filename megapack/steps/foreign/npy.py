"""The older packed form of Megatron-Bridge and NeMo: a `.npy` file of pickled dictionaries.

A pickle may run anything, and numpy's own classes trust what a pickle tells them: a damaged one
can take the process down. So nothing but what such a file is made of is known here (arrays and
numbers of numpy, Python's own lists, dictionaries and numbers), and the arrays are put together by
this file from a type, a shape and bytes, each of them checked.
"""

import math
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from tokenize import TokenError
from typing import Any

import numpy as np

from megapack.errors import DataError

_MODULES = (
    "numpy.core.multiarray",
    "numpy._core.multiarray",
    "numpy.core.numeric",
    "numpy._core.numeric",
)
_NUMBERS = "biuf"
_OTHER_ORDER = ">" if sys.byteorder == "little" else "<"
_DAMAGED = (
    *(ValueError, TypeError, LookupError, AttributeError, ImportError, ArithmeticError),
    *(EOFError, MemoryError, RecursionError, SyntaxError, SystemError, TokenError),
    pickle.UnpicklingError,
)
Built = Any
"""An array, or a list of objects in the place of one."""


class _Type:
    """Stands for `numpy.dtype`."""

    def __init__(self, name: str, *_: object) -> None:
        self._name = str(name)
        self._swapped = False

    def __setstate__(self, state: Sequence[Any]) -> None:
        self._swapped = state[1] == _OTHER_ORDER

    def build(self) -> np.dtype[Any] | None:
        """The type; None for objects."""
        if self._name in ("O", "O8", "object"):
            return None
        found = np.dtype(self._name)
        if found.kind not in _NUMBERS:
            raise pickle.UnpicklingError(f"it holds values of type {found}")
        return found.newbyteorder("S") if self._swapped else found


class _Array:
    """Stands for `numpy.ndarray`."""

    def __init__(self, *_: object) -> None:
        self.values: Built = None

    def __setstate__(self, state: Sequence[Any]) -> None:
        _, shape, kind, columns_first, data = state
        self.values = _filled(data, kind, shape, "F" if columns_first else "C")


def _filled(data: Any, kind: _Type, shape: Sequence[int], order: str) -> Built:  # noqa: ANN401
    dtype = kind.build()
    if dtype is None:
        if not isinstance(data, list) or len(data) != math.prod(shape):
            raise pickle.UnpicklingError("it holds an array of objects of another size")
        return data
    array = np.frombuffer(bytes(data), dtype=dtype).reshape(shape, order=order)  # type: ignore[call-overload]
    return array.astype(dtype.newbyteorder("="))


def _array_of(data: Any, kind: _Type, shape: Sequence[int], order: str) -> _Array:  # noqa: ANN401
    made = _Array()
    made.values = _filled(data, kind, shape, order)
    return made


def _number(kind: _Type, data: bytes) -> Built:
    return _filled(data, kind, (1,), "C")[0]


_KNOWN: Mapping[str, Callable[..., Any]] = {
    "_reconstruct": _Array,
    "_frombuffer": _array_of,
    "scalar": _number,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - pickle's own signature
        if module in _MODULES and name in _KNOWN:
            return _KNOWN[name]
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return _Array if name == "ndarray" else _Type
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_packed_npy(data: bytes, *, where: str) -> list[Mapping[str, Any]]:
    """Records of a packed `.npy` file.

    Args:
        data: its bytes.
        where: its uri.

    Raises:
        DataError: it is no such file, or asks for more than data.
    """
    stream = BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            np.lib.format.read_array_header_1_0(stream)
        else:
            np.lib.format.read_array_header_2_0(stream)
        found = _values(_Unpickler(stream).load())
    except _DAMAGED as error:
        raise DataError(
            f"{where}: expected a .npy file of packed records, found one that cannot be loaded "
            f"safely: {str(error)[:200]}. Convert it to packed Parquet."
        ) from error
    found = found if isinstance(found, list) else [found]
    if not all(isinstance(record, Mapping) for record in found):
        raise DataError(f"{where}: expected an array of dictionaries, found other things.")
    return [{key: _values(value) for key, value in record.items()} for record in found]


def _values(value: object) -> Built:
    return value.values if isinstance(value, _Array) else value
