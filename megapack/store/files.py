"""Folders of plain files as versions: checkpoints, tokenizers.

Each file is a content-addressed part. Processes on several nodes upload their own files, and one
of them commits the manifest. Nothing of a fetched folder is visible under its final name before
every file's SHA-256 has been checked: checkpoint files hold pickles and must not be opened else.
"""

import hashlib
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from megapack.errors import ConfigError, ContractError, DataError, StoreError
from megapack.store.committed import Committed
from megapack.store.location import Location, open_location
from megapack.store.manifest import Contents, Part, PartKind
from megapack.store.versions import commit, read_version
from megapack.store.writer import PART_PREFIX, REFRESH_AFTER_S

_CHUNK_BYTES = 1 << 20


def upload_files(
    store: str | Location, folder: Path, names: Iterable[str] | None = None
) -> tuple[Part, ...]:
    """Upload files of a folder as parts; the version does not exist until it is committed.

    Args:
        store: the store.
        folder: local folder.
        names: paths inside it, all files by default; each process names its own.

    Returns:
        One part a file, sorted by name.

    Raises:
        ConfigError: the folder or a named file does not exist.
        StoreError: the store failed.
    """
    location = store if isinstance(store, Location) else open_location(store)
    chosen = sorted(_all_files(folder) if names is None else names)
    missing = [name for name in chosen if not (folder / name).is_file()]
    if missing or not folder.is_dir():
        raise ConfigError(f"expected the files {missing or 'of a folder'} in {folder}, found none.")
    return tuple(_upload(location, folder / name, name=name) for name in chosen)


def commit_folder(store: str | Location, folder: Path, contents: Contents) -> Committed:
    """Upload all files of a folder and commit them as a version.

    Args:
        store: the store.
        folder: local folder.
        contents: what the version is; its parts are replaced by the folder's files.

    Raises:
        ConfigError: the folder does not exist.
        StoreError: the store failed.
    """
    parts = upload_files(store, folder)
    return commit(store, replace(contents, parts=parts).manifest())


def fetch_folder(store: str | Location, version: int | None, destination: Path) -> Committed:
    """Download a version's files into a new folder, every digest checked.

    Args:
        store: the store.
        version: number, the newest one when None.
        destination: folder to make; must not exist yet, or be empty.

    Raises:
        ConfigError: no such version, it holds no files, or the destination is in use.
        StoreError: a file is missing, or the store failed.
        DataError: a file's digest differs from the manifest's; nothing is left behind.
    """
    location = store if isinstance(store, Location) else open_location(store)
    committed = read_version(location, version)
    parts = committed.manifest.parts_of(PartKind.FILE)
    if not parts:
        raise ConfigError(
            f"{location.uri} version {committed.version}: expected a version of files, found kind "
            f"{committed.manifest.kind!r}."
        )
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ConfigError(f"expected {destination} to be absent or empty. Choose another folder.")
    destination.parent.mkdir(parents=True, exist_ok=True)
    staging = destination.with_name(f".{destination.name}.{secrets.token_hex(6)}")
    try:
        for part in parts:
            _download(location, part, staging / safe_name(part.name))
        staging.replace(destination)
    except OSError as error:
        raise StoreError(f"could not write {destination}: {error}. Check the disk.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return committed


def safe_name(name: str) -> str:
    """A file's path inside its folder, when it stays inside.

    Raises:
        ContractError: absolute, or with an empty, `.` or `..` component.
    """
    if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name:
        raise ContractError(f"file name {name!r}: expected a relative path without '.' and '..'.")
    return name


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _all_files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _upload(location: Location, path: Path, *, name: str) -> Part:
    digest, size = sha256_of(path), path.stat().st_size
    key = f"{PART_PREFIX}{digest}"
    found = location.stat(key)
    if found is None or found.size != size or found.age_s > REFRESH_AFTER_S:
        location.put_file(key, path)
    return Part(key=key, size=size, sha256=digest, kind=PartKind.FILE, name=safe_name(name))


def _download(location: Location, part: Part, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    location.get_file(part.key, path)
    found = sha256_of(path)
    if found != part.sha256:
        raise DataError(
            f"{location.uri}/{part.key} ({part.name}): expected sha256 {part.sha256}, found "
            f"{found}: the stored file was altered and was not opened. Use another version."
        )
