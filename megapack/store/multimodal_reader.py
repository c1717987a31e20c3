"""Rows of text and images of one committed version, by the manifest and never by a listing.

pyarrow reads one row group at a time, without threads of its own, so a reader works in a process
that was forked at any time; a connection to the store is made anew there. Row groups that were read
last are kept, up to 64 MB. The size of each part is checked before it is first read.
"""

import hashlib
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from megapack.errors import ConfigError, DataError
from megapack.store.committed import Committed
from megapack.store.location import Location, open_location
from megapack.store.manifest import Part, PartKind
from megapack.store.multimodal_table import PLANNING, StoredRow, table_to_rows
from megapack.store.part_reader import IncompletePartError, Verify
from megapack.store.schema import SchemaId
from megapack.store.source_system import file_system, guarded

KEPT_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
_ADVICE = "Restore the part, or delete it and run pack-multimodal again."


@dataclass(slots=True, eq=False)
class _Open:
    """An open part: its file and the first row of each of its row groups."""

    file: pq.ParquetFile
    firsts: list[int]


class MultimodalReader:
    """Rows of one version. To be used by one thread at a time; may be pickled and forked."""

    def __init__(self, version: Committed, *, verify: Verify = Verify.SIZE) -> None:
        """Name a version; nothing is read.

        Args:
            version: of multimodal rows.
            verify: how a part is checked before it is first read.

        Raises:
            ConfigError: it holds other rows, or rows of another schema.
        """
        self.version = version
        self.info = version.manifest.multimodal_info()
        if version.manifest.schema_id != SchemaId.MULTIMODAL_ROWS:
            raise ConfigError(
                f"{version.uri} version {version.version}: expected rows of schema "
                f"{SchemaId.MULTIMODAL_ROWS.value}, found {version.manifest.schema_id!r}, which "
                "another version of megapack wrote. Pack the data again."
            )
        self._verify = verify
        self.parts = version.manifest.parts_of(PartKind.MULTIMODAL_ROWS)
        self._ends = list(accumulate(part.num_records for part in self.parts))
        self._forget()

    @property
    def num_rows(self) -> int:
        """Rows of all epochs."""
        return self._ends[-1] if self._ends else 0

    def row(self, number: int) -> StoredRow:
        """One row, without pixels.

        Raises:
            ConfigError: there is no such row.
            StoreError: the part is missing, or the store failed.
            DataError: the part is damaged.
        """
        if not 0 <= number < self.num_rows:
            raise ConfigError(
                f"{self.version.uri}: expected a row number in [0, {self.num_rows}), found "
                f"{number}."
            )
        at = bisect_right(self._ends, number)
        inside = number - (self._ends[at] - self.parts[at].num_records)
        return self.row_of(at, inside)

    def row_of(self, part: int, number: int) -> StoredRow:
        """One row, by number of the part and inside it. Raises as `row` does."""
        opened = self._opened(part)
        group = bisect_right(opened.firsts, number) - 1
        table = self._group(part, group, opened)
        where = f"{self._where(self.parts[part])} row {number}"
        (row,) = table_to_rows(table.slice(number - opened.firsts[group], 1), where=where)
        return row

    def planning(self, part: int) -> pa.Table:
        """The planning columns of a part, without its samples. Raises as `row` does."""
        return self.columns(part, PLANNING)

    def columns(self, part: int, names: Sequence[str]) -> pa.Table:
        """Some columns of a part; a dotted path names one inside samples. Raises as `row` does."""
        opened = self._opened(part)
        return self._read(part, lambda: opened.file.read(list(names), use_threads=False))

    def rejects(self) -> pa.Table:
        """The samples that were left out, of all parts of rejects. Raises as `row` does."""
        tables = []
        for part in self.version.manifest.parts_of(PartKind.MULTIMODAL_REJECTS):
            file = self._open_file(part)
            tables.append(_guarded_read(lambda file=file: file.read(use_threads=False), part.key))
        return pa.concat_tables(tables) if tables else pa.table({})

    def close(self) -> None:
        """Close the files."""
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: no open file, no table."""
        return {"version": self.version, "verify": self._verify}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["version"], verify=state["verify"])  # type: ignore[misc]

    def _forget(self) -> None:
        self._process = os.getpid()
        self._location: Location | None = None
        self._files: dict[int, _Open] = {}
        self._kept: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()

    def _opened(self, part: int) -> _Open:
        if self._process != os.getpid():
            self._forget()  # files of the process that this one was forked from
        if part not in self._files:
            file = self._open_file(self.parts[part])
            rows = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
            if sum(rows) != self.parts[part].num_records:
                raise DataError(
                    f"{self._where(self.parts[part])}: expected {self.parts[part].num_records} "
                    f"rows, found {sum(rows)}. {_ADVICE}"
                )
            self._files[part] = _Open(file, [0, *accumulate(rows)][:-1])
        return self._files[part]

    def _open_file(self, part: Part) -> pq.ParquetFile:
        if self._location is None:
            self._location = open_location(self.version.uri)
        self._check(part, self._location)
        uri = self._where(part)
        filesystem, path = file_system(uri)
        handle = guarded(
            lambda: filesystem.open(path, "rb", block_size=_BLOCK_BYTES), action="read", uri=uri
        )
        return _guarded_read(lambda: pq.ParquetFile(handle, pre_buffer=False), uri)

    def _group(self, part: int, group: int, opened: _Open) -> pa.Table:
        key = (part, group)
        if key not in self._kept:
            table = self._read(part, lambda: opened.file.read_row_group(group, use_threads=False))
            self._kept[key] = table
            while len(self._kept) > 1 and sum(t.nbytes for t in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _read(self, part: int, call: Any) -> pa.Table:  # noqa: ANN401 - a call of pyarrow
        return _guarded_read(call, self._where(self.parts[part]))

    def _check(self, part: Part, location: Location) -> None:
        size = location.size(part.key)
        if size != part.size:
            found = "nothing" if size is None else f"{size} bytes"
            raise IncompletePartError(
                f"{self._where(part)}: expected {part.size} bytes, found {found}. The version is "
                "incomplete: restore the part, or run pack-multimodal again."
            )
        if self._verify is Verify.SIZE:
            return
        digest = hashlib.sha256(location.get(part.key)).hexdigest()
        if digest != part.sha256:
            raise DataError(
                f"{self._where(part)}: expected sha256 {part.sha256}, found {digest}: the part was "
                f"altered. {_ADVICE}"
            )

    def _where(self, part: Part) -> str:
        return f"{self.version.uri}/{part.key}"


def _guarded_read(call: Any, where: str) -> Any:  # noqa: ANN401 - pyarrow is untyped
    def told() -> Any:  # noqa: ANN401 - likewise
        try:
            return call()
        except (pa.ArrowException, OSError) as error:
            # pyarrow tells of damaged files by errors without a number, the store by others.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            text = " ".join(str(error).split())[:300]
            raise DataError(
                f"{where}: expected a Parquet part, found a file that pyarrow cannot read: {text}. "
                f"{_ADVICE}"
            ) from error

    return guarded(told, action="read", uri=where)
