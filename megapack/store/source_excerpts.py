"""Records of a source file as they stand there, unparsed: to show them, and to copy some of them.

Lines that are no JSON are records too. Nothing is read beyond the last one that is asked for.
"""

import gzip
import io
import json
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import zstandard

from megapack.errors import DataError
from megapack.store.source_files import Compression, FileShape, SourceFile
from megapack.store.source_records import read_records
from megapack.store.source_system import file_system, guarded

_LINE_SHAPES = (FileShape.LINES, FileShape.MERGED_LINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLine:
    """One line.

    Attributes:
        number: counted from 0; blank lines count.
        data: its bytes, with their end.
        position: bytes of the file, as it is stored, that were read up to here.
    """

    number: int
    data: bytes
    position: int


def excerpts(uri: str, lines: Collection[int]) -> dict[int, str]:
    """Texts of records, by line.

    Args:
        uri: a source file.
        lines: record numbers, counted from 0.

    Returns:
        The texts; lines that are not there are absent.

    Raises:
        ConfigError: the suffix is that of no source file.
        StoreError: the file is gone, or the store failed.
        DataError: the file cannot be decompressed.
    """
    file = SourceFile(uri=uri, size=0, fingerprint="")
    wanted, last = set(lines), max(lines, default=-1)
    found: dict[int, str] = {}
    for line, text in record_texts(file):
        if line > last:
            break
        if line in wanted:
            found[line] = text
    return found


def record_texts(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Record numbers and texts, in order; raises as `excerpts` does."""
    if file.shape in _LINE_SHAPES:
        for line in raw_lines(file):
            yield line.number, line.data.decode("utf-8", errors="replace").rstrip("\r\n")
        return
    for record in read_records(file):
        value = json.dumps(record.value, ensure_ascii=False, default=str)
        yield record.line, record.error or value


def raw_lines(file: SourceFile) -> Iterator[RawLine]:
    """Lines of a `.jsonl` or `.jsonl.packed` file.

    Raises:
        StoreError: the file is gone, or the store failed.
        DataError: the file cannot be decompressed.
    """
    filesystem, path = file_system(file.uri)
    handle = guarded(lambda: filesystem.open(path, "rb"), action="read", uri=file.uri)
    with handle:
        lines = iter(_plain(handle, file.compression))
        number = 0
        while data := guarded(lambda: _next(lines, file.uri), action="read", uri=file.uri):
            yield RawLine(number=number, data=data, position=handle.tell())
            number += 1


def _plain(handle: Any, compression: Compression) -> Any:  # noqa: ANN401 - file objects
    if compression is Compression.GZIP:
        return gzip.GzipFile(fileobj=handle)
    if compression is Compression.ZSTD:
        reader = zstandard.ZstdDecompressor().stream_reader(handle, read_across_frames=True)
        return io.BufferedReader(reader)
    return handle


def _next(lines: Iterator[bytes], uri: str) -> bytes:
    """The next line, empty at the end."""
    try:
        return next(lines, b"")
    except (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile) as error:
        raise DataError(
            f"source file {uri}: expected a whole compressed file, found it damaged or cut off: "
            f"{error}. Fetch or write it again."
        ) from error
