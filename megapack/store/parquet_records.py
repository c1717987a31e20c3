"""Records of a Parquet file, one row group at a time, by pyarrow.

Nothing here starts a thread, so it works in a forked data worker. Only the columns that are asked
for are read. A row group whose columns take more than `most_bytes` is read in parts, in order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
from fsspec.implementations.local import LocalFileSystem

from megapack.errors import DataError, StoreError
from megapack.store.record_blocks import FileBlocks, RecordBlock
from megapack.store.s3_failures import explain
from megapack.store.source_system import file_system

MOST_BYTES = 256 << 20
_BUFFER_BYTES = 1 << 20


def parquet_blocks(uri: str, columns: Sequence[str], *, most_bytes: int = MOST_BYTES) -> FileBlocks:
    """Blocks of a file, from its footer.

    Args:
        uri: of the file.
        columns: names of those that will be read.
        most_bytes: a row group's columns of more, decoded, are read in parts.

    Raises:
        DataError: it is no Parquet file, or a column is missing.
        StoreError: the store failed.
    """
    with _faults(uri), _opened(uri) as file:
        _check_columns(file, columns, uri=uri)
        metadata = file.metadata
        blocks, row = [], 0
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            size = _decoded_bytes(metadata.row_group(group), columns)
            step = max(1, rows // max(1, -(-size // most_bytes)))
            for start in range(0, rows, step):
                end = min(start + step, rows)
                blocks.append((group, start, end, row + start, end - start))
            row += rows
        return FileBlocks.of(blocks, row_groups=metadata.num_row_groups)


class ParquetRecords:
    """Reads blocks of one file; the one read last is kept by who asked for it, not here."""

    def __init__(self, uri: str, blocks: FileBlocks, columns: Sequence[str]) -> None:
        self._uri = uri
        self._blocks = blocks
        self._columns = list(columns)
        self._stream: Iterator[pa.RecordBatch] = iter(())
        self._streamed = -1
        self._held: list[tuple[int, pa.RecordBatch]] = []
        self._end = 0

    def read(self, number: int) -> RecordBlock:
        """One block.

        Raises:
            DataError: the file is damaged, or has changed since its blocks were listed.
            StoreError: the store failed.
        """
        blocks = self._blocks
        group, start = int(blocks.units[number]), int(blocks.starts[number])
        end, first = int(blocks.ends[number]), int(blocks.first_rows[number])
        with _faults(self._uri):
            table = self._table(group, start, end, whole=self._is_whole(number))
        if table.num_rows != end - start:
            raise DataError(
                f"{self._uri}: expected {end - start} rows from row {first} on, found "
                f"{table.num_rows}: the file has changed. Start again."
            )
        columns = {name: table.column(name) for name in self._columns}

        def record(at: int) -> Mapping[str, object]:
            try:
                return {name: column[at].as_py() for name, column in columns.items()}
            except (ValueError, pa.ArrowException) as error:
                raise DataError(
                    f"expected values that can be read, found {type(error).__name__}: {error}."
                ) from error

        return RecordBlock(rows=np.arange(first, first + end - start), record=record)

    def _is_whole(self, number: int) -> bool:
        return bool((self._blocks.units == self._blocks.units[number]).sum() == 1)

    def _table(self, group: int, start: int, end: int, *, whole: bool) -> pa.Table:
        if whole:
            with _opened(self._uri) as file:
                return file.read_row_group(group, columns=self._columns, use_threads=False)
        if group != self._streamed or start < (self._held[0][0] if self._held else self._end):
            self._stream = self._batches(group, end - start)
            self._streamed, self._held, self._end = group, [], 0
        while self._end < end:
            batch = next(self._stream, None)
            if batch is None:
                break
            self._held.append((self._end, batch))
            self._end += batch.num_rows
        self._held = [(at, batch) for at, batch in self._held if at + batch.num_rows > start]
        if not self._held:
            return pa.table({name: [] for name in self._columns})
        table = pa.Table.from_batches([batch for _, batch in self._held])
        return table.slice(start - self._held[0][0], end - start)

    def _batches(self, group: int, rows: int) -> Iterator[pa.RecordBatch]:
        with _opened(self._uri, buffer_size=_BUFFER_BYTES) as file:
            yield from file.iter_batches(
                batch_size=rows, row_groups=[group], columns=self._columns, use_threads=False
            )


@contextmanager
def _opened(uri: str, *, buffer_size: int = 0) -> Iterator[Any]:
    filesystem, path = file_system(uri)
    # Without a cache, each column of a row group is one request.
    options = {} if isinstance(filesystem, LocalFileSystem) else {"cache_type": "none"}
    with (
        filesystem.open(path, "rb", **options) as handle,
        pq.ParquetFile(handle, pre_buffer=False, buffer_size=buffer_size) as file,
    ):
        yield file


@contextmanager
def _faults(uri: str) -> Iterator[None]:
    """What pyarrow raises: a fault of the file (it gives no errno), or of the store."""
    try:
        yield
    except pa.ArrowException as error:
        raise _damaged(uri, error) from error
    except (OSError, ClientError, BotoCoreError) as error:
        if type(error) is OSError and error.errno is None:
            raise _damaged(uri, error) from error
        raise StoreError(explain(error, action="read", key="its records", uri=uri)) from error


def _damaged(uri: str, error: Exception) -> DataError:
    return DataError(
        f"{uri}: expected a Parquet file, found one that cannot be read: "
        f"{' '.join(str(error).split())[:300]}. Restore the file, or leave it out by a glob."
    )


def _check_columns(file: Any, columns: Sequence[str], *, uri: str) -> None:  # noqa: ANN401
    found: list[str] = file.schema_arrow.names
    for name in columns:
        if found.count(name) != 1:
            raise DataError(
                f"{uri}: expected one column {name!r}, found {found.count(name)} of that name "
                f"among {found}. Set image_field and text_field of the group."
            )


def _decoded_bytes(group: Any, columns: Sequence[str]) -> int:  # noqa: ANN401 - untyped pyarrow
    chunks = (group.column(number) for number in range(group.num_columns))
    belongs: Callable[[str], bool] = lambda path: path.split(".")[0] in columns  # noqa: E731
    return sum(chunk.total_uncompressed_size for chunk in chunks if belongs(chunk.path_in_schema))
