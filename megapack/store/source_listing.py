"""What stands at a source's address: its files by name, hidden and bookkeeping ones left out."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
from fsspec.implementations.local import LocalFileSystem

from megapack.errors import ConfigError
from megapack.store.source_system import file_system, guarded


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """Files of a source.

    Attributes:
        filesystem: the fsspec file system that they stand on.
        base: the folder that a person named, as the file system writes it.
        files: what the file system tells of each, by its path there, sorted.
        nothing: what was found when there are none.
    """

    filesystem: Any
    base: str
    files: Mapping[str, Mapping[str, Any]]
    nothing: str

    def uri_of(self, name: str) -> str:
        """Absolute path or `s3://` uri of a file."""
        return str(self.filesystem.unstrip_protocol(name)).removeprefix("file://")

    def relative(self, name: str) -> str:
        """Its path below the base."""
        return name.removeprefix(self.base).strip("/")


def find_files(uri: str) -> Listing:
    """List a file, folder, glob or prefix, local or `s3://`.

    Raises:
        ConfigError: the scheme is unknown, or there is no such bucket.
        StoreError: the store failed or refused.
    """
    filesystem, path = file_system(uri)
    found = guarded(lambda: _find(filesystem, path), action="list", uri=uri)
    base = _base(path, found)
    kept = sorted(name for name in found if not _is_hidden(name, base=base))
    if not kept:
        _check_bucket(filesystem, path, uri=uri)
    return Listing(
        filesystem=filesystem,
        base=base,
        files={name: found[name] for name in kept},
        nothing="only hidden files" if found else "nothing",
    )


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
