"""Records of a source file, one at a time, each with its line and, when unreadable, its fault.

A bad line costs that line alone. A file that cannot be decompressed or is no Parquet is an error:
how much of it is missing cannot be known.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import polars as pl
import zstandard

from megapack.errors import DataError
from megapack.store.source_files import (
    Compression,
    FileShape,
    SourceFile,
    file_system,
    guarded,
)

_BOM = b"\xef\xbb\xbf"
_PARQUET_BATCH = 512
_BLOCK_BYTES = 1 << 20
_PACKED_BYTES = 1 << 16
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """One record as it stands in a file.

    Attributes:
        line: line number, or index in an array or table, counted from 0; blank lines count.
        value: the JSON value, None when unreadable.
        error: what is wrong with it, "" when nothing is.
    """

    line: int
    value: Any = None
    error: str = ""


def read_records(file: SourceFile) -> Iterator[RawRecord]:
    """Read a file, streaming where its shape allows.

    Args:
        file: what to read; `.jsonl` and `.jsonl.packed` are never held in memory whole.

    Raises:
        StoreError: the store failed.
        DataError: the file as a whole cannot be decompressed or decoded.
    """
    filesystem, path = file_system(file.uri)
    handle = guarded(lambda: filesystem.open(path, "rb"), action="read", uri=file.uri)
    with handle:
        if file.shape is FileShape.PARQUET:
            yield from _parquet(handle, uri=file.uri)
            return
        if file.compression is not Compression.NONE:
            _check_not_empty(handle, uri=file.uri)
        plain = _decompressed(handle, file.compression)
        lines = _blocks(plain, uri=file.uri)
        if file.shape is FileShape.ARRAY:
            yield from _array(b"".join(lines))
        else:
            yield from _lines(lines)


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


def _blocks(plain: Iterable[bytes], *, uri: str) -> Iterator[bytes]:
    """Lines of bytes, with their ends."""
    iterator = iter(plain)
    while True:
        try:
            line = guarded(lambda: _next(iterator), action="read", uri=uri)
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


def _lines(lines: Iterable[bytes]) -> Iterator[RawRecord]:
    for number, line in enumerate(lines):
        raw = line.removeprefix(_BOM) if number == 0 else line
        if raw.strip():
            yield _record(raw.rstrip(b"\r\n"), line=number)


def _record(raw: bytes, *, line: int) -> RawRecord:
    try:
        return RawRecord(line=line, value=_parse(raw))
    except (ValueError, RecursionError) as error:
        return RawRecord(line=line, error=_fault(error))


def _parse(raw: bytes) -> Any:  # noqa: ANN401 - any JSON value
    value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    if b"\\ud" in raw or b"\\uD" in raw:
        # JSON can spell half of a surrogate pair; no tokenizer and no file can hold one.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _fault(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"expected UTF-8, found byte 0x{error.object[error.start]:02x} at {error.start}."
    if isinstance(error, UnicodeEncodeError):
        return "expected text, found half of a surrogate pair."
    if isinstance(error, json.JSONDecodeError):
        return f"expected JSON, found: {error.msg} (character {error.pos})."
    if isinstance(error, RecursionError):
        return "expected JSON, found it nested too deeply."
    return f"expected JSON: {error}."


def _array(raw: bytes) -> Iterator[RawRecord]:
    text = raw.removeprefix(_BOM).strip()
    whole = _record(text, line=0)
    if whole.error:
        elements = _elements(text)
        if elements:
            yield from (_record(part, line=index) for index, part in enumerate(elements))
            return
    if not isinstance(whole.value, list):
        yield whole
        return
    for index, value in enumerate(whole.value):
        yield RawRecord(line=index, value=value)


def _elements(text: bytes) -> list[bytes]:
    """Texts of an array's elements, cut without reading them; none when its brackets are off."""
    if not text.startswith(b"["):
        return []
    parts, depth, start = [], 0, 1
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in b"[{":
            depth += 1
        elif token in b"]}":
            depth -= 1
        if depth == 0 or (depth == 1 and token == b","):
            parts.append(text[start : match.start()].strip())
            start = match.end()
        if depth == 0:
            break
    return parts if depth == 0 and start == len(text) else []


def _parquet(handle: Any, *, uri: str) -> Iterator[RawRecord]:  # noqa: ANN401 - file object
    data = guarded(handle.read, action="read", uri=uri)
    try:
        frame = pl.read_parquet(io.BytesIO(data))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"source file {uri}: expected Parquet: {error}.") from error
    line = 0
    for batch in frame.iter_slices(_PARQUET_BATCH):
        for row in batch.to_dicts():
            yield RawRecord(line=line, value=_without_nulls(row))
            line += 1


def _without_nulls(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A value without the members that Parquet's one schema for all records filled with null."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
