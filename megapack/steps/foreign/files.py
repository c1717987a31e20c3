"""Files of packed data of others, and their records as dictionaries.

Parquet, JSON lines and arrays are read a batch at a time; `.npy` and `.arrow` files are held in
memory whole.
"""

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import polars as pl

from megapack.errors import ConfigError, DataError
from megapack.steps.foreign.npy import read_packed_npy
from megapack.store.source_files import SourceFile
from megapack.store.source_records import read_records
from megapack.store.source_system import file_system, guarded

_STREAMED = (".parquet", ".jsonl", ".jsonl.packed", ".json", ".jsonl.gz", ".jsonl.zst")
_WHOLE = (".pq", ".npy", ".arrow")
_BOOKKEEPING = ("export.json", "dataset_info.json", "state.json", "dataset_dict.json")


def packed_files(uri: str) -> tuple[str, ...]:
    """Files of a file, folder, glob or prefix, sorted by uri.

    Raises:
        ConfigError: nothing that can be read is there.
        StoreError: the store failed.
    """
    filesystem, path = file_system(uri)
    names = guarded(lambda: filesystem.find(path), action="list", uri=uri)
    if not names:
        names = guarded(lambda: filesystem.glob(path), action="list", uri=uri)
    full = [filesystem.unstrip_protocol(name).removeprefix("file://") for name in names]
    chosen = sorted(
        name
        for name in full
        if name.lower().endswith(_STREAMED + _WHOLE) and name.rpartition("/")[2] not in _BOOKKEEPING
    )
    if not chosen:
        raise ConfigError(
            f"{uri}: expected a dataset of megapack, or files that end in one of "
            f"{', '.join(_STREAMED + _WHOLE)}; found {full[0] if full else 'nothing'}. Check the "
            "path."
        )
    return tuple(chosen)


def records_of(uri: str) -> Iterator[tuple[str, Mapping[str, Any] | None, str]]:
    """Records of a file.

    Yields:
        Where it is; the record, or None and what is wrong with it.

    Raises:
        StoreError: the store failed.
        DataError: the file as a whole cannot be read.
    """
    name = uri.rpartition("/")[2]
    if uri.lower().endswith(_WHOLE):
        for number, record in enumerate(_whole(uri)):
            yield f"{name} row {number}", record, ""
        return
    for raw in read_records(SourceFile(uri=uri, size=0, fingerprint="")):
        where = f"{name} row {raw.line}"
        if isinstance(raw.value, Mapping):
            yield where, raw.value, ""
        else:
            yield where, None, raw.error or f"found {type(raw.value).__name__}"


def _whole(uri: str) -> Iterator[Mapping[str, Any]]:
    filesystem, path = file_system(uri)
    data: bytes = guarded(lambda: filesystem.cat_file(path), action="read", uri=uri)
    if uri.lower().endswith(".npy"):
        yield from read_packed_npy(data, where=uri)
        return
    try:
        yield from _frame(data, uri=uri).iter_rows(named=True)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{uri}: expected a file that polars reads: {str(error)[:200]}.") from error


def _frame(data: bytes, *, uri: str) -> pl.DataFrame:
    if uri.lower().endswith(".pq"):
        return pl.read_parquet(BytesIO(data))
    try:
        return pl.read_ipc_stream(BytesIO(data))
    except pl.exceptions.PolarsError:
        return pl.read_ipc(BytesIO(data))
