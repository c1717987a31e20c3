"""`PartCache`: whole parts of a remote store as files of this node, each fetched once.

The processes of a node share one folder. A file takes its name when it is complete and its SHA-256
checked; a lock of the operating system, which a killed process lets go of, makes the others wait
for it instead of fetching it too. What was used longest ago makes room. A file that another process
removes between two looks is fetched again.
"""

import fcntl
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from megapack.errors import DataError, StoreError
from megapack.store.files import sha256_of
from megapack.store.local_folder import LocalFolder
from megapack.store.location import Location
from megapack.store.manifest import Part
from megapack.store.part_reader import PartReader

_INCOMPLETE = "incomplete-"
_LOCKS = "locks"
_STALE_S = 3600.0
_ATTEMPTS = 3


class PartCache:
    """Parts of a store in a local folder, at most so many bytes of them."""

    def __init__(self, folder: Path, *, limit_bytes: int) -> None:
        """Name a folder; it is made when the first part is fetched.

        Args:
            folder: node-local, for this purpose only; processes and stores may share it.
            limit_bytes: of all its files.
        """
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._local = LocalFolder(folder)

    def holds(self, parts: Iterable[Part]) -> bool:
        """Whether all these parts fit, so that each is fetched once however often it is used."""
        return sum({part.key: part.size for part in parts}.values()) <= self._limit_bytes

    def read(self, location: Location, part: Part, *, rows: tuple[int, int]) -> pl.DataFrame:
        """Records of a part, fetched whole when it is not there.

        Args:
            location: the store.
            part: of the store.
            rows: first record and number of records.

        Raises:
            StoreError: the store or the disk failed.
            DataError: the part was altered, or has other records than recorded.
        """
        failure: StoreError | None = None
        for _ in range(_ATTEMPTS):
            self._ensure(location, part)
            try:
                # A reader of its own each time: one that was used before takes a file for there.
                return PartReader(self._local).read(part, rows=rows)
            except StoreError as error:
                failure = error
        raise StoreError(
            f"{self._folder}: expected a cached part to stay for the time of a read, found it "
            f"removed {_ATTEMPTS} times: {failure}. Give the cache more bytes."
        ) from failure

    def _ensure(self, location: Location, part: Part) -> None:
        path = self._folder / part.key
        try:
            if self._used(path, part):
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked(part):
                if not self._used(path, part):
                    self._fetch(location, part, path)
        except OSError as error:
            raise StoreError(f"{self._folder}: could not cache a part: {error}.") from error

    def _used(self, path: Path, part: Part) -> bool:
        """Whether the file is there, marked as used now."""
        try:
            found = path.stat().st_size == part.size
            path.touch()
        except FileNotFoundError:
            return False
        return found

    def _fetch(self, location: Location, part: Part, path: Path) -> None:
        self._make_room(part.size)
        staged = path.with_name(f"{_INCOMPLETE}{secrets.token_hex(8)}")
        try:
            location.get_file(part.key, staged)
            found = sha256_of(staged)
            if found != part.sha256:
                raise DataError(
                    f"{location.uri}/{part.key}: expected sha256 {part.sha256}, found {found}: the "
                    "part was altered. Restore it, or run the step that writes it again."
                )
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Remove files, those used longest ago first, until `size` more bytes fit."""
        files = sorted(self._files(), key=lambda one: one[1])
        total = sum(held for _, _, held in files)
        now = time.time()
        for path, used, held in files:
            incomplete = path.name.startswith(_INCOMPLETE)
            if incomplete and now - used < _STALE_S:
                continue
            if incomplete or total + size > self._limit_bytes:
                path.unlink(missing_ok=True)
                total -= held

    def _files(self) -> Iterator[tuple[Path, float, int]]:
        """Path, time of last use and bytes of every file but the locks."""
        for path in (self._folder / "parts").iterdir():
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            yield path, found.st_mtime, found.st_size

    @contextmanager
    def _locked(self, part: Part) -> Iterator[None]:
        folder = self._folder / _LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / part.sha256).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
