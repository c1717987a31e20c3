"""`Location`: one folder or S3 prefix, addressed by keys, with the few operations a version needs.

Nothing here lists in order to read, and nothing is cached: a key's size is asked for anew each
time, so that an object that another process wrote or replaced is seen as it is. The one operation
that carries the atomicity of commits is `put_if_absent`.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megapack.errors import ContractError, StoreError

_PROBE_PREFIX = "probes/"


class MissingKeyError(StoreError):
    """The store answered, and it holds no object under this key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """What the store says about one object.

    Attributes:
        key: relative to the location.
        size: bytes.
        age_s: seconds since it was last written, by the store's own clock.
    """

    key: str
    size: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSource:
    """What `polars.scan_parquet` needs to read one object.

    Attributes:
        path: local path or `s3://` uri.
        storage_options: polars' storage options, None for a local path.
    """

    path: str
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)


class Location(ABC):
    """A place that holds objects under keys such as `parts/….parquet`.

    Instances may be shared by threads and pickled. After a fork each process connects anew.

    Attributes:
        uri: the folder (absolute path) or `s3://bucket/prefix`, without a slash at its end.
    """

    uri: str

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Content of an object.

        Raises:
            MissingKeyError: there is none.
            StoreError: the store failed or refused.
        """

    @abstractmethod
    def get_file(self, key: str, path: Path) -> None:
        """Download an object to a local file. Raises as `get` does."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing what is there.

        Raises:
            StoreError: the store failed or refused.
        """

    @abstractmethod
    def put_file(self, key: str, path: Path) -> None:
        """Upload a local file, replacing what is there. Raises as `put` does."""

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object only where there is none: of several writers exactly one succeeds.

        Returns:
            True when this call created the object. False when the store says that one is there,
            which may be this very call's, sent twice because the first answer got lost.

        Raises:
            StoreError: the store failed or refused. The object may have been written: whoever
                must know reads the key back.
        """

    @abstractmethod
    def stat(self, key: str) -> StoredKey | None:
        """Size and age of an object, None when there is none. Raises StoreError."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Bytes of an object now, None when there is none. Raises StoreError."""

    @abstractmethod
    def touch(self, key: str) -> None:
        """Make an object young again, its content unchanged.

        Raises:
            MissingKeyError: there is none.
            StoreError: the store failed or refused.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; nothing happens when there is none. Raises StoreError."""

    @abstractmethod
    def list_keys(self, prefix: str) -> list[StoredKey]:
        """Objects whose key begins with `prefix`, sorted by key.

        For garbage collection and for finding the newest version when its hint is gone; readers
        go by manifests.
        """

    @abstractmethod
    def parquet_source(self, key: str) -> ParquetSource:
        """How polars reads this object in place."""

    def check_writable(self) -> None:
        """Prove that the place can be written to and that conditional writes hold.

        To be called before any expensive step. Two creates go to one fresh key; the second must
        be refused, because commits rest on that.

        Raises:
            StoreError: the place cannot be written to, or the store ignores `If-None-Match`.
        """
        key = f"{_PROBE_PREFIX}{secrets.token_hex(8)}"
        first, second = (self.put_if_absent(key, token) for token in (b"first", b"second"))
        kept = self.get(key)
        self.delete(key)
        if second or kept != b"first" or not first:
            raise StoreError(
                f"{self.uri}: expected the store to refuse a second create of one key, found that "
                "it ignores If-None-Match, so two writers could overwrite each other's version. "
                "Use a store with conditional writes (AWS S3, SeaweedFS, MinIO, R2) or a local "
                "folder."
            )


def check_key(key: str) -> str:
    """The key itself, when it stays inside its location.

    Raises:
        ContractError: empty, absolute, or with an empty, `.` or `..` component.
    """
    if not key or any(part in ("", ".", "..") for part in key.rstrip("/").split("/")):
        raise ContractError(f"store key {key!r}: expected a relative path without '.' and '..'.")
    return key
