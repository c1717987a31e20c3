"""Which files a source is made of: a file, a folder, a glob or a prefix, local or `s3://`.

Nothing is left out in silence: a file whose suffix no reader knows is an error that names it.
Hidden files (`.name`) and bookkeeping files (`_SUCCESS`) are skipped, and so is all that lies in a
folder below the source with such a name (`.cache/`, `_temporary/`). Order is by uri.
"""

import hashlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from megapack.errors import ConfigError, StoreError
from megapack.store.source_listing import find_files
from megapack.store.source_system import file_system, guarded


class FileShape(StrEnum):
    """How a file holds its records."""

    LINES = ".jsonl"
    MERGED_LINES = ".jsonl.packed"
    ARRAY = ".json"
    PARQUET = ".parquet"


class Compression(StrEnum):
    """How a file is compressed as a whole."""

    NONE = ""
    GZIP = ".gz"
    ZSTD = ".zst"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of a source.

    Attributes:
        uri: absolute path or `s3://` uri.
        size: bytes.
        fingerprint: changes when the content does: ETag, or size and time of last change of the
            file itself, behind any symbolic link.
    """

    uri: str
    size: int
    fingerprint: str

    @property
    def shape(self) -> FileShape:
        """How it holds its records."""
        return file_form(self.uri)[0]

    @property
    def compression(self) -> Compression:
        """How it is compressed."""
        return file_form(self.uri)[1]


def file_form(uri: str) -> tuple[FileShape, Compression]:
    """Shape and compression, by suffix.

    Raises:
        ConfigError: no reader knows the suffix.
    """
    name = uri.rsplit("/", 1)[-1].lower()
    compression = next((c for c in Compression if c.value and name.endswith(c.value)), None)
    bare = name.removesuffix(compression.value) if compression else name
    for shape in FileShape:
        if bare.endswith(shape.value) and not (compression and shape is FileShape.PARQUET):
            return shape, compression or Compression.NONE
    known = ", ".join(shape.value for shape in FileShape)
    raise ConfigError(
        f"source file {uri}: expected one of the suffixes {known} (all but .parquet also with .gz "
        f"or .zst), found {name!r}. Name the files to read with a glob such as "
        "'folder/*.jsonl', or convert the file."
    )


def list_files(uri: str) -> tuple[SourceFile, ...]:
    """The files of a source, sorted by uri.

    Args:
        uri: file, folder, glob or prefix, local or `s3://`.

    Raises:
        ConfigError: nothing is there, a suffix or the scheme is unknown, or something there is no
            regular file.
        StoreError: the store failed or refused.
    """
    listing = find_files(uri)
    if not listing.files:
        raise ConfigError(
            f"source {uri}: expected a file, folder, glob or prefix with conversations, found "
            f"{listing.nothing}. Check the path and, for s3://, AWS_ENDPOINT_URL."
        )
    files = []
    for name, info in listing.files.items():
        if isinstance(listing.filesystem, LocalFileSystem):
            check_regular(listing.uri_of(name))
        file_form(listing.uri_of(name))
        files.append(source_file(listing.filesystem, listing.uri_of(name), info))
    return tuple(files)


def current_fingerprint(uri: str) -> str:
    """Fingerprint of a file of `list_files` as it is now; "" when it is gone.

    Raises:
        StoreError: the store failed or refused.
    """
    filesystem, path = file_system(uri)
    try:
        info = guarded(lambda: dict(filesystem.info(path)), action="look at", uri=uri)
        return source_file(filesystem, uri, info).fingerprint
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return ""
        raise


def file_digest(uri: str) -> str:
    """SHA-256 of a file's bytes as they are stored, hex.

    Raises:
        StoreError: the store failed or refused.
    """
    filesystem, path = file_system(uri)

    def read() -> str:
        with filesystem.open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()

    return guarded(read, action="read", uri=uri)


def check_regular(path: str) -> None:
    """Refuse what has a name but no content to read twice.

    Raises:
        ConfigError: a link whose target is gone or is a folder, a pipe, a socket or a device.
        StoreError: the file system refused.
    """
    file = Path(path)
    if file.is_symlink() and not file.exists():
        raise ConfigError(
            f"source file {path}: expected a file, found a symbolic link whose target is gone. "
            "Restore the target, or remove the link."
        )
    mode = guarded(lambda: file.stat().st_mode, action="look at", uri=path)
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        found, advice = "a symbolic link to a folder", "Name that folder as a source of its own"
    else:
        found, advice = "a pipe, socket or device", "Write its content to a file"
    raise ConfigError(
        f"source file {path}: expected a regular file, found {found}. {advice}, or remove it."
    )


def source_file(filesystem: Any, uri: str, info: Mapping[str, Any]) -> SourceFile:  # noqa: ANN401
    """Size and fingerprint of a file that was found.

    Raises:
        StoreError: the file system refused.
    """
    if isinstance(filesystem, LocalFileSystem):
        path = Path(filesystem._strip_protocol(uri))
        status = guarded(path.stat, action="look at", uri=uri)
        # What fsspec tells of a link is the link's own time.
        return SourceFile(
            uri=uri, size=status.st_size, fingerprint=f"{status.st_size}-{status.st_mtime_ns}"
        )
    size = int(info.get("size") or 0)
    tag = info.get("ETag")
    changed = info.get("LastModified") or 0
    stamp = changed.isoformat() if isinstance(changed, datetime) else repr(changed)
    return SourceFile(
        uri=uri, size=size, fingerprint=str(tag).strip('"') if tag else f"{size}-{stamp}"
    )
