"""Which files a source is made of: a file, a folder, a glob or a prefix, local or `s3://`.

Nothing is left out in silence: a file whose suffix no reader knows is an error that names it.
Hidden files (`.name`) and bookkeeping files (`_SUCCESS`) are skipped, and so is all that lies in a
folder below the source with such a name (`.cache/`, `_temporary/`). Order is by uri.
"""

import contextlib
import hashlib
import stat
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
from fsspec.implementations.local import LocalFileSystem

from megapack.errors import ConfigError, StoreError
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
    filesystem, path = file_system(uri)
    found = guarded(lambda: _find(filesystem, path), action="list", uri=uri)
    base = _base(path, found)
    kept = sorted(name for name in found if not _is_hidden(name, base=base))
    if not kept:
        _check_bucket(filesystem, path, uri=uri)
        raise ConfigError(
            f"source {uri}: expected a file, folder, glob or prefix with conversations, found "
            f"{'only hidden files' if found else 'nothing'}. Check the path and, for s3://, "
            "AWS_ENDPOINT_URL."
        )
    files = []
    for name in kept:
        full = filesystem.unstrip_protocol(name).removeprefix("file://")
        if isinstance(filesystem, LocalFileSystem):
            _check_regular(full)
        file_form(full)
        files.append(_source_file(filesystem, full, found[name]))
    return tuple(files)


def current_fingerprint(uri: str) -> str:
    """Fingerprint of a file of `list_files` as it is now; "" when it is gone.

    Raises:
        StoreError: the store failed or refused.
    """
    filesystem, path = file_system(uri)
    try:
        info = guarded(lambda: dict(filesystem.info(path)), action="look at", uri=uri)
        return _source_file(filesystem, uri, info).fingerprint
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


def _find(filesystem: Any, path: str) -> dict[str, dict[str, Any]]:  # noqa: ANN401 - untyped fsspec
    if any(character in path for character in "*?[") and not filesystem.exists(path):
        matches = filesystem.glob(path, detail=True)
        # A link to a file is of type "other", and so is one to a folder.
        return {
            name: info
            for name, info in matches.items()
            if info["type"] == "file" or (info["type"] == "other" and not filesystem.isdir(name))
        }
    if filesystem.isfile(path):
        return {path: filesystem.info(path)}
    try:
        return dict(filesystem.find(path, detail=True))
    except FileNotFoundError:
        return {}


def _check_bucket(filesystem: Any, path: str, *, uri: str) -> None:  # noqa: ANN401 - untyped fsspec
    """Tell a bucket that is not there from one in which nothing was found.

    Raises:
        ConfigError: there is no such bucket.
    """
    if isinstance(filesystem, LocalFileSystem):
        return
    bucket = path.split("/")[0]
    with contextlib.suppress(PermissionError, ClientError, BotoCoreError):
        try:
            filesystem.call_s3("head_bucket", Bucket=bucket)
        except FileNotFoundError as error:
            raise ConfigError(
                f"source {uri}: expected a bucket {bucket!r}, found no such bucket. Check the uri "
                "and AWS_ENDPOINT_URL."
            ) from error


def _base(path: str, found: dict[str, dict[str, Any]]) -> str:
    """The folder that a person named: hidden names in its own path do not count."""
    if path in found:
        return path.rpartition("/")[0]
    parts = path.rstrip("/").split("/")
    magic = (at for at, part in enumerate(parts) if any(one in part for one in "*?["))
    base = "/".join(parts[: next(magic, len(parts))])
    # Without a wildcard, or where a folder's name holds one, all found lies below the path itself.
    below = all(name.startswith(f"{path.rstrip('/')}/") for name in found)
    return path.rstrip("/") if below else base


def _is_hidden(name: str, *, base: str) -> bool:
    below = name.removeprefix(base).strip("/").split("/")
    return any(part.startswith((".", "_")) for part in below)


def _check_regular(path: str) -> None:
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


def _source_file(filesystem: Any, uri: str, info: dict[str, Any]) -> SourceFile:  # noqa: ANN401
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
