"""Image files that records name by a path below one folder or prefix."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from megapack.errors import ConfigError, DataError, StoreError
from megapack.store.source_system import file_system, guarded

MOST_BYTES = 256 << 20
_SHOWN = 200


def check_folder(uri: str) -> None:
    """Check that a folder or prefix of images is there.

    Raises:
        ConfigError: it is not.
        StoreError: the store failed.
    """
    filesystem, path = file_system(uri)
    if not guarded(lambda: filesystem.isdir(path), action="look at", uri=uri):
        raise ConfigError(
            f"images {uri}: expected a folder or prefix, found none. Set `images` of the source to "
            "the folder that the paths of its records start from."
        )


class ImageFolder:
    """Reads files of one folder, and of no other: a record cannot lead out of it."""

    def __init__(self, uri: str) -> None:
        """Say where the folder is; it is not looked at yet.

        Raises:
            ConfigError: the scheme is unknown.
        """
        self._uri = uri.rstrip("/") or uri
        file_system(uri)

    def read(self, path: str) -> bytes:
        """Content of a file.

        Raises:
            DataError: there is no such file, it is too large, or the path leads out of the folder.
            StoreError: the store failed.
        """
        filesystem, full = self._place(path)
        with self._absent(path):
            return guarded(
                lambda: self._content(filesystem, full, path),
                action="read",
                uri=f"{self._uri}/{path}",
            )

    def names(self, path: str) -> tuple[str, ...]:
        """Names of the files in a folder below, sorted.

        Raises:
            DataError: there is no such folder, or the path leads out.
            StoreError: the store failed.
        """
        filesystem, full = self._place(path)
        with self._absent(path):
            found = guarded(
                lambda: filesystem.ls(full.rstrip("/"), detail=True),
                action="list",
                uri=f"{self._uri}/{path}",
            )
        names = (entry["name"] for entry in found if entry["type"] != "directory")
        # Asked for a file, a file system lists the file itself.
        below = sorted(name.rsplit("/", 1)[-1] for name in names if name != full.rstrip("/"))
        if not below:
            raise DataError(f"expected a folder of images {path[:_SHOWN]!r}, found none.")
        return tuple(below)

    def _place(self, path: str) -> tuple[Any, str]:
        parts = PurePosixPath(path).parts
        leads_out = path.startswith("/") or ".." in parts or "://" in path or "\\" in path
        if leads_out or not parts or "\0" in path or not _is_unicode(path):
            raise DataError(
                f"expected a path of an image below its folder, without '..', found "
                f"{path[:_SHOWN]!r}. Set `images` of the source to the folder above them all."
            )
        filesystem, base = file_system(self._uri)
        return filesystem, f"{base.rstrip('/')}/{PurePosixPath(path)}"

    def _content(self, filesystem: Any, full: str, path: str) -> bytes:  # noqa: ANN401 - untyped
        """Size first, then content: a pipe would never end, a film would fill the memory."""
        info = filesystem.info(full)
        is_local = isinstance(filesystem, LocalFileSystem)
        if not (Path(full).is_file() if is_local else info["type"] == "file"):
            raise DataError(f"expected an image file {path[:_SHOWN]!r}, found a folder or device.")
        size = Path(full).stat().st_size if is_local else info["size"]
        if size > MOST_BYTES:
            raise DataError(
                f"expected an image of at most {MOST_BYTES} bytes, found {size} in "
                f"{path[:_SHOWN]!r}."
            )
        data: bytes = filesystem.cat_file(full)
        return data

    @contextlib.contextmanager
    def _absent(self, path: str) -> Iterator[None]:
        """A file that is not there is a fault of the record, not of the store."""
        try:
            yield
        except StoreError as error:
            cause = error.__cause__
            absent = isinstance(cause, FileNotFoundError | NotADirectoryError | IsADirectoryError)
            # A name that no file system takes (ENAMETOOLONG) is not there either.
            if absent or (isinstance(cause, OSError) and cause.errno == errno.ENAMETOOLONG):
                raise DataError(
                    f"expected a file {path[:_SHOWN]!r} in the folder of images, found none. Set "
                    "`images` of the source to the folder that the paths start from."
                ) from error
            raise


def _is_unicode(path: str) -> bool:
    """Whether a file can have such a name; JSON may hold lone surrogates."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
