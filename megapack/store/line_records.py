"""Records of a JSONL file, some lines at a time. Blank lines are no records.

The file is scanned once for where its blocks begin; a block is then one read of a range.
"""

import io
import json
from collections.abc import Mapping

import numpy as np

from megapack.errors import DataError
from megapack.store.record_blocks import FileBlocks, RecordBlock
from megapack.store.source_system import file_system, guarded

BLOCK_RECORDS = 256
BLOCK_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_UNFIT = (ValueError, RecursionError)


def line_blocks(uri: str, *, block_records: int = BLOCK_RECORDS) -> FileBlocks:
    """Blocks of a file, of at most `block_records` records and about `BLOCK_BYTES`.

    Raises:
        StoreError: the store failed.
    """
    filesystem, path = file_system(uri)

    def scan() -> FileBlocks:
        with (
            filesystem.open(path, "rb") as handle,
            io.BufferedReader(handle, _BUFFER_BYTES) as lines,
        ):
            return _scan(lines, block_records)

    return guarded(scan, action="read", uri=uri)


def _scan(lines: io.BufferedReader, block_records: int) -> FileBlocks:
    blocks: list[tuple[int, int, int, int, int]] = []
    start = at = size = first = 0
    for row, line in enumerate(lines):
        if size == 0:
            start, first = at, row
        at += len(line)
        size += bool(line.strip())
        if size and (size == block_records or at - start >= BLOCK_BYTES):
            blocks.append((len(blocks), start, at, first, size))
            size = 0
    if size:
        blocks.append((len(blocks), start, at, first, size))
    return FileBlocks.of(blocks, row_groups=0)


class LineRecords:
    """Reads blocks of one file."""

    def __init__(self, uri: str, blocks: FileBlocks) -> None:
        self._uri = uri
        self._blocks = blocks

    def read(self, number: int) -> RecordBlock:
        """One block.

        Raises:
            DataError: the file has changed since its blocks were listed.
            StoreError: the store failed.
        """
        blocks = self._blocks
        start, end = int(blocks.starts[number]), int(blocks.ends[number])
        filesystem, path = file_system(self._uri)
        data: bytes = guarded(
            lambda: filesystem.cat_file(path, start=start, end=end), action="read", uri=self._uri
        )
        lines = data.split(b"\n")
        kept = [at for at, line in enumerate(lines) if line.strip()]
        if len(data) != end - start or len(kept) != blocks.sizes[number]:
            raise DataError(
                f"{self._uri}: expected {blocks.sizes[number]} records in bytes {start} to {end}, "
                f"found {len(kept)} in {len(data)} bytes: the file has changed. Start again."
            )

        def record(at: int) -> Mapping[str, object]:
            return _parsed(lines[kept[at]])

        first = int(blocks.first_rows[number])
        return RecordBlock(rows=np.array(kept, dtype=np.int64) + first, record=record)


def _parsed(line: bytes) -> Mapping[str, object]:
    try:
        value = json.loads(line.removeprefix(_BOM).decode("utf-8"))
    except _UNFIT as error:
        raise DataError(
            f"expected JSON in UTF-8, found {type(error).__name__}: {error}."
        ) from error
    if not isinstance(value, dict):
        raise DataError(f"expected a JSON object, found {type(value).__name__}.")
    return value
