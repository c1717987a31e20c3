"""Records of a source file, one at a time, each with its line and, when unreadable, its fault.

A bad line costs that line alone. A file that cannot be decompressed or is no Parquet is an error:
how much of it is missing cannot be known.
"""

import gzip
import io
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl
import zstandard
from fsspec.implementations.local import LocalFileSystem

from megapack.errors import DataError
from megapack.store.json_array import read_array
from megapack.store.raw_record import RawRecord, record_of
from megapack.store.source_files import Compression, FileShape, SourceFile
from megapack.store.source_system import file_system, guarded

_BOM = b"\xef\xbb\xbf"
_PARQUET_BATCH = 512
_BLOCK_BYTES = 1 << 20
_PACKED_BYTES = 1 << 16


def read_records(file: SourceFile) -> Iterator[RawRecord]:
    """Read a file. No file is held in memory whole: a record at a time, or a batch of a table.

    Args:
        file: what to read; Parquet from S3 is copied to the temporary folder first.

    Raises:
        StoreError: the store failed.
        DataError: the file as a whole cannot be decompressed or decoded.
    """
    filesystem, path = file_system(file.uri)
    if file.shape is FileShape.PARQUET:
        with _on_disk(filesystem, path, uri=file.uri) as local:
            yield from _parquet(local, uri=file.uri)
        return
    handle = guarded(lambda: filesystem.open(path, "rb"), action="read", uri=file.uri)
    with handle:
        if file.compression is not Compression.NONE:
            _check_not_empty(handle, uri=file.uri)
        plain = _decompressed(handle, file.compression)
        blocks = _blocks(iter(lambda: plain.read(_BLOCK_BYTES), b""), uri=file.uri)
        if file.shape is FileShape.ARRAY:
            yield from read_array(blocks, uri=file.uri)
        else:
            yield from _records(_lines(blocks))


def _decompressed(handle: Any, compression: Compression) -> Any:  # noqa: ANN401 - file objects
    if compression is Compression.GZIP:
        return gzip.GzipFile(fileobj=handle)
    if compression is Compression.ZSTD:
        return io.BufferedReader(_ZstdFrames(handle), _BLOCK_BYTES)
    return handle


class _ZstdFrames(io.RawIOBase):
    """Frames end to end. The library's own reader takes a cut frame for a whole one."""

    def __init__(self, handle: Any) -> None:  # noqa: ANN401 - file objects
        self._handle = handle
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any writable buffer
        while not self._plain:
            packed = self._frame.unused_data if self._frame.eof else b""
            packed = packed or self._handle.read(_PACKED_BYTES)
            if not packed:
                if not self._frame.eof:
                    raise EOFError("the last frame has no end")
                return 0
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._plain = memoryview(self._frame.decompress(packed))
        size = min(len(buffer), len(self._plain))
        buffer[:size] = self._plain[:size]
        self._plain = self._plain[size:]
        return size


def _check_not_empty(handle: Any, *, uri: str) -> None:  # noqa: ANN401 - file objects
    """Even nothing, compressed, has a header: such a file was never written."""
    head = guarded(lambda: handle.read(1), action="read", uri=uri)
    if not head:
        raise DataError(
            f"source file {uri}: expected a whole compressed file, found 0 bytes. Fetch or write "
            "it again."
        )
    guarded(lambda: handle.seek(0), action="read", uri=uri)


def _blocks(plain: Iterator[bytes], *, uri: str) -> Iterator[bytes]:
    """The same pieces of bytes; what fails on the way is named."""
    while True:
        try:
            line = guarded(lambda: _next(plain), action="read", uri=uri)
        except (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile) as error:
            raise DataError(
                f"source file {uri}: expected a whole compressed file, found it damaged or cut "
                f"off: {error}. Fetch or write it again."
            ) from error
        if line is None:
            return
        yield line


def _next(iterator: Iterator[bytes]) -> bytes | None:
    try:
        return next(iterator, None)
    except gzip.BadGzipFile as error:  # an OSError, but no fault of the store
        raise EOFError(str(error)) from error


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without their ends."""
    begun: list[bytes] = []
    for block in blocks:
        first, *others = block.split(b"\n")
        begun.append(first)
        if others:
            yield b"".join(begun)
            yield from others[:-1]
            begun = others[-1:]
    yield b"".join(begun)


def _records(lines: Iterable[bytes]) -> Iterator[RawRecord]:
    for number, line in enumerate(lines):
        raw = line.removeprefix(_BOM) if number == 0 else line
        if raw and not raw.isspace():
            yield record_of(raw.rstrip(b"\r"), line=number)


def _parquet(path: str, *, uri: str) -> Iterator[RawRecord]:
    line = 0
    try:
        # Batches leave the reader as they are decoded: neither file nor table is held whole.
        for batch in pl.scan_parquet(path, glob=False).collect_batches(chunk_size=_PARQUET_BATCH):
            for row in batch.iter_rows(named=True):
                yield RawRecord(line=line, value=_without_nulls(row))
                line += 1
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"source file {uri}: expected Parquet: {error}.") from error


@contextmanager
def _on_disk(filesystem: Any, path: str, *, uri: str) -> Iterator[str]:  # noqa: ANN401 - untyped
    """A local path with the file's content: its own, or that of a copy that is gone afterwards."""
    if isinstance(filesystem, LocalFileSystem):
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".parquet") as copy:
        guarded(lambda: filesystem.get_file(path, copy.name), action="read", uri=uri)
        yield copy.name


def _without_nulls(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A value without the members that Parquet's one schema for all records filled with null."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
