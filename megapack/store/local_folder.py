"""`LocalFolder`: a location on a local or network file system.

Every object is written to a temporary file, synced, and put in place by a rename or, where it
must not replace anything, by a hard link. A writer killed at any moment leaves at most a file
under `.tmp/`, which nobody reads and garbage collection removes.
"""

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megapack.errors import ConfigError, StoreError
from megapack.store.objects import (
    Location,
    MissingKeyError,
    ParquetSource,
    StoredKey,
    check_key,
)

TEMPORARY = ".tmp"
_READ_ONLY = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class LocalFolder(Location):
    """A folder; keys are paths below it."""

    def __init__(self, root: Path) -> None:
        """Name a folder; it is created at the first write.

        Raises:
            ConfigError: the path is empty or holds a component that looks like a uri scheme.
        """
        if any(part.endswith(":") for part in root.parts):
            raise ConfigError(
                f"store {str(root)!r}: expected a local path, found one with a component that ends "
                "in ':'. A uri needs two slashes after its scheme, as in s3://bucket/prefix."
            )
        self.root = Path(os.path.abspath(root.expanduser()))  # noqa: PTH100 - keep symlinks
        self.uri = str(self.root)

    def get(self, key: str) -> bytes:
        """Content of a file."""
        with self._errors("read", key):
            return self._path(key).read_bytes()

    def get_file(self, key: str, path: Path) -> None:
        """Copy a file out."""
        with self._errors("read", key):
            shutil.copyfile(self._path(key), path)

    def put(self, key: str, data: bytes) -> None:
        """Write a file, replacing what is there."""
        with self._errors("write", key), self._staged() as staged:
            _write_synced(staged, data)
            self._publish(staged, key)

    def put_file(self, key: str, path: Path) -> None:
        """Copy a file in, replacing what is there."""
        with self._errors("write", key), self._staged() as staged:
            with path.open("rb") as source, staged.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                _sync(target.fileno())
            self._publish(staged, key)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create a file by a hard link, which fails where one is there."""
        with self._errors("write", key), self._staged() as staged:
            _write_synced(staged, data)
            target = self._path(key)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(staged, target)
            except FileExistsError:
                return False
            _sync_folder(target.parent)
            return True

    def stat(self, key: str) -> StoredKey | None:
        """Size and age of a file."""
        try:
            with self._errors("read", key):
                found = self._path(key).stat()
        except MissingKeyError:
            return None
        return StoredKey(key=key, size=found.st_size, age_s=self._now() - found.st_mtime)

    def size(self, key: str) -> int | None:
        """Bytes of a file; unlike `stat` it also works where nothing can be written."""
        try:
            with self._errors("read", key):
                return self._path(key).stat().st_size
        except MissingKeyError:
            return None

    def touch(self, key: str) -> None:
        """Set the file's time to now."""
        with self._errors("read", key):
            os.utime(self._path(key))

    def delete(self, key: str) -> None:
        """Remove a file."""
        with self._errors("delete", key):
            self._path(key).unlink(missing_ok=True)

    def list_keys(self, prefix: str) -> list[StoredKey]:
        """Files below the folder whose key begins with `prefix`."""
        folder = self.root / prefix.rpartition("/")[0]
        found = []
        with self._errors("list", prefix or "/"):
            now = self._now() if folder.is_dir() else 0.0
            for path in folder.rglob("*"):
                key = path.relative_to(self.root).as_posix()
                if not key.startswith(prefix) or (
                    key.startswith(f"{TEMPORARY}/") and not prefix.startswith(TEMPORARY)
                ):
                    continue
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue
                if path.is_file():
                    age = now - status.st_mtime
                    found.append(StoredKey(key=key, size=status.st_size, age_s=age))
        return sorted(found, key=lambda one: one.key)

    def parquet_source(self, key: str) -> ParquetSource:
        """The file's path."""
        return ParquetSource(path=str(self._path(key)))

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _publish(self, staged: Path, key: str) -> None:
        target = self._path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        staged.replace(target)
        _sync_folder(target.parent)

    def _now(self) -> float:
        """The file system's own time, which on a network share is not this machine's.

        Where nothing can be written it cannot be asked: this machine's time is given then.
        """
        try:
            with self._staged() as staged:
                staged.touch()
                return staged.stat().st_mtime
        except OSError as error:
            if error.errno in _READ_ONLY:
                # Only writers need the exact age; who can just read must be able to list.
                return time.time()
            raise self._failed("ask the time of", "/", error) from error

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        """A path for a new temporary file, gone afterwards."""
        folder = self.root / TEMPORARY
        folder.mkdir(parents=True, exist_ok=True)
        staged = folder / secrets.token_hex(12)
        try:
            yield staged
        finally:
            staged.unlink(missing_ok=True)

    @contextmanager
    def _errors(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            if action in ("read", "list"):
                raise MissingKeyError(
                    f"{self.uri}: expected {key}, found nothing there."
                ) from error
            raise self._failed(action, key, error) from error
        except OSError as error:
            raise self._failed(action, key, error) from error

    def _failed(self, action: str, key: str, error: OSError) -> StoreError:
        advice = {
            errno.EACCES: "Check the folder's owner and permissions.",
            errno.EPERM: "Check permissions, and that the file system has hard links.",
            errno.EROFS: "It is mounted read-only; choose another folder.",
            errno.ENOSPC: "The disk is full; free space or choose another folder.",
            errno.ENOTDIR: "A part of the path is a file; choose another folder.",
            errno.EEXIST: "A part of the path is a file; choose another folder.",
        }.get(error.errno or 0, "Check the path and the disk.")
        return StoreError(f"{self.uri}: could not {action} {key}: {error.strerror}. {advice}")


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        _sync(file.fileno())


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
