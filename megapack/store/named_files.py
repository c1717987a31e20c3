"""Single plain files of a version, written from memory and read back checked."""

import hashlib
from collections.abc import Mapping

from megapack.errors import DataError
from megapack.store.files import safe_name
from megapack.store.location import Location
from megapack.store.manifest import Part, PartKind
from megapack.store.writer import PART_PREFIX, put_once


def put_named(
    location: Location, name: str, data: bytes, *, counts: Mapping[str, int] | None = None
) -> Part:
    """Write a file as a content-addressed part.

    Args:
        location: the store.
        name: path of the file inside its version.
        data: its content.
        counts: to record with it.

    Raises:
        ContractError: the name leaves its folder.
        StoreError: the store failed.
    """
    digest = hashlib.sha256(data).hexdigest()
    key = f"{PART_PREFIX}{digest}"
    part = Part(
        key=key,
        size=len(data),
        sha256=digest,
        kind=PartKind.FILE,
        name=safe_name(name),
        counts=dict(counts or {}),
    )
    put_once(location, key, data)
    return part


def read_named(location: Location, part: Part) -> bytes:
    """Content of a file, checked.

    Raises:
        MissingKeyError: it is gone.
        StoreError: the store failed.
        DataError: its digest is not the recorded one.
    """
    data = location.get(part.key)
    found = hashlib.sha256(data).hexdigest()
    if found != part.sha256:
        raise DataError(
            f"{location.uri}/{part.key} ({part.name}): expected sha256 {part.sha256}, found "
            f"{found}: the stored file was altered. Restore it, or run the step that writes it."
        )
    return data
