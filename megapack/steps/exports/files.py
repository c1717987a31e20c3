"""Where an export goes: a folder or prefix that is whole or not there.

A local folder is written beside its place and renamed at the end. Under `s3://` nothing can be
renamed, so `export.json` is written last: an export without it is not finished, and the next one
to the same place takes over what it left. Anything else that is found there is refused.
"""

import json
import re
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megapack.errors import ConfigError, StoreError
from megapack.store.dataset_address import EXPORT_MARKER as MARKER
from megapack.store.local_folder import TEMPORARY, LocalFolder
from megapack.store.location import Location, open_location

_OURS = re.compile(r"(train|validation)-\d{5}\.(idx\.parquet|parquet|jsonl\.packed)")


class ExportTarget(ABC):
    """One export in the making."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write one file.

        Raises:
            StoreError: it cannot be written.
        """

    @abstractmethod
    def finish(self, summary: Mapping[str, Any]) -> None:
        """Make the export visible as a whole.

        Args:
            summary: JSON content of `export.json`.

        Raises:
            StoreError: the store failed.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Leave as little behind as the place allows."""


def open_target(out: str) -> ExportTarget:
    """Begin an export.

    Raises:
        ConfigError: something stands there already.
        StoreError: the place cannot be read.
    """
    location = open_location(out)
    found = {stored.key for stored in location.list_keys("")}
    if isinstance(location, LocalFolder):
        if found:
            raise _occupied(location.uri, found)
        return _LocalTarget(location.root)
    if MARKER in found or not all(_OURS.fullmatch(key) for key in found):
        raise _occupied(location.uri, found)
    return _PrefixTarget(location, unfinished=found)


def _occupied(uri: str, found: set[str]) -> ConfigError:
    return ConfigError(
        f"expected nothing at {uri}, found {len(found)} objects, such as {min(found)}. Choose "
        "another place, or remove what is there."
    )


class _LocalTarget(ExportTarget):
    def __init__(self, root: Path) -> None:
        self._root = root
        self._staging = root.with_name(f".{root.name}.{secrets.token_hex(6)}")
        self._files = LocalFolder(self._staging)

    def write(self, name: str, data: bytes) -> None:
        self._files.put(name, data)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.write(MARKER, _json(summary))
        try:
            shutil.rmtree(self._staging / TEMPORARY, ignore_errors=True)
            self._staging.replace(self._root)
        except OSError as error:
            raise StoreError(
                f"could not put the export in place at {self._root}: {error}. Choose another "
                "place, or remove what is there."
            ) from error

    def abandon(self) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)


class _PrefixTarget(ExportTarget):
    def __init__(self, location: Location, *, unfinished: set[str]) -> None:
        self._location = location
        self._left = set(unfinished)

    def write(self, name: str, data: bytes) -> None:
        self._location.put(name, data)
        self._left.discard(name)

    def finish(self, summary: Mapping[str, Any]) -> None:
        for name in sorted(self._left):
            self._location.delete(name)
        if not self._location.put_if_absent(MARKER, _json(summary)):
            raise StoreError(
                f"{self._location.uri}: expected to finish this export, found that another one "
                "did meanwhile. Export to places of their own."
            )

    def abandon(self) -> None:
        """Without `export.json` nothing is there to a reader; the next export takes over."""


def _json(summary: Mapping[str, Any]) -> bytes:
    return json.dumps(summary, indent=1, sort_keys=True).encode()
