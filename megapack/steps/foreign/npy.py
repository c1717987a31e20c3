"""The older packed form of Megatron-Bridge and NeMo: a `.npy` file of pickled dictionaries.

A pickle may run anything, so only what such a file is made of can be loaded: numpy's arrays and
numbers, and Python's own lists, dictionaries and numbers.
"""

import pickle
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np

from megapack.errors import DataError

_ALLOWED = {
    (module, name)
    for name in ("_reconstruct", "scalar", "_frombuffer")
    for module in (
        "numpy.core.multiarray",
        "numpy._core.multiarray",
        "numpy.core.numeric",
        "numpy._core.numeric",
    )
} | {("numpy", "ndarray"), ("numpy", "dtype")}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - pickle's own signature
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


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
        records = _Unpickler(stream).load()
    except (ValueError, EOFError, pickle.UnpicklingError, AttributeError, ImportError) as error:
        raise DataError(
            f"{where}: expected a .npy file of packed records, found one that cannot be loaded "
            f"safely: {str(error)[:200]}. Convert it to packed Parquet."
        ) from error
    found = list(np.asarray(records, dtype=object).reshape(-1))
    if not all(isinstance(record, Mapping) for record in found):
        raise DataError(f"{where}: expected an array of dictionaries, found other things.")
    return found
