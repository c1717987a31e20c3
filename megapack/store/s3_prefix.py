"""`S3Prefix`: a location under an S3 bucket, through s3fs.

s3fs is asked for single requests only: its directory listings, which it would cache, are never
used. Waiting is bounded: an endpoint that is down is reported within seconds. s3fs's event loop
does not survive a fork, so the connection is made anew in each process.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import botocore.session  # type: ignore[import-untyped]
import s3fs
from botocore.exceptions import (  # type: ignore[import-untyped]
    BotoCoreError,
    ClientError,
)

from megapack.errors import ConfigError, StoreError
from megapack.store.objects import (
    Location,
    MissingKeyError,
    ParquetSource,
    StoredKey,
    check_key,
)
from megapack.store.s3_failures import code_of, explain

CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 20
TRANSFER_TIMEOUT_S = 120
ATTEMPTS = 2
_LOST_CODES = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})
_MISSING_CODES = frozenset({"NoSuchKey", "404"})
_DEFAULT_REGION = "us-east-1"


class S3Prefix(Location):
    """A bucket, or a prefix in one; keys stand below it."""

    def __init__(self, path: str) -> None:
        """Name a bucket and prefix; nothing is contacted.

        Args:
            path: `bucket/prefix`.

        Raises:
            ConfigError: no bucket.
        """
        self.bucket, _, prefix = path.strip("/").partition("/")
        self.prefix = prefix.strip("/")
        if not self.bucket:
            raise ConfigError("store 's3://': expected s3://bucket/prefix, found no bucket.")
        self.uri = f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    def get(self, key: str) -> bytes:
        """Content of an object."""
        with self._errors("read", key):
            return bytes(self._fs.cat_file(self._full(key), max_concurrency=1))

    def get_file(self, key: str, path: Path) -> None:
        """Download an object."""
        with self._errors("read", key):
            self._fs.get_file(self._full(key), str(path))

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        with self._errors("write", key):
            self._fs.pipe_file(self._full(key), data)

    def put_file(self, key: str, path: Path) -> None:
        """Upload a file, in several requests when it is large."""
        with self._errors("write", key):
            self._fs.put_file(str(path), self._full(key))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """PutObject with `If-None-Match: *`."""
        try:
            with self._errors("write", key):
                self._call("put_object", key, Body=data, IfNoneMatch="*")
        except StoreError as error:
            if (
                isinstance(error.__cause__, BaseException)
                and code_of(error.__cause__) in _LOST_CODES
            ):
                return False
            raise
        return True

    def stat(self, key: str) -> StoredKey | None:
        """HeadObject; the age compares the answer's own `Date` with `LastModified`."""
        try:
            with self._errors("read", key):
                answer = self._call("head_object", key)
        except MissingKeyError:
            return None
        age = _age_s(answer["LastModified"], answer)
        return StoredKey(key=key, size=int(answer["ContentLength"]), age_s=age)

    def size(self, key: str) -> int | None:
        """HeadObject."""
        found = self.stat(key)
        return None if found is None else found.size

    def touch(self, key: str) -> None:
        """Write the object again: not every store renews the time of a copy onto itself."""
        self.put(key, self.get(key))

    def delete(self, key: str) -> None:
        """DeleteObject."""
        with self._errors("delete", key):
            self._call("delete_object", key)

    def list_keys(self, prefix: str) -> list[StoredKey]:
        """ListObjectsV2, page by page."""
        base = f"{self.prefix}/" if self.prefix else ""
        request: dict[str, str] = {"Bucket": self.bucket, "Prefix": base + prefix}
        found = []
        while True:
            with self._errors("list", prefix or "/"):
                answer = self._fs.call_s3("list_objects_v2", **request)
            for one in answer.get("Contents", ()):
                key = one["Key"].removeprefix(base)
                if not key.endswith("/"):
                    age = _age_s(one["LastModified"], answer)
                    found.append(StoredKey(key=key, size=int(one["Size"]), age_s=age))
            if not answer.get("IsTruncated"):
                return sorted(found, key=lambda one: one.key)
            request["ContinuationToken"] = answer["NextContinuationToken"]

    def parquet_source(self, key: str) -> ParquetSource:
        """The object's uri, with the credentials that s3fs would use, too."""
        return ParquetSource(
            path=f"{self.uri}/{check_key(key)}", storage_options=_polars_options(self.uri)
        )

    @property
    def _fs(self) -> s3fs.S3FileSystem:
        return _connect(os.getpid(), _environment())

    def _call(self, method: str, key: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401
        bucket, _, name = self._full(key).partition("/")
        answer: dict[str, Any] = self._fs.call_s3(method, Bucket=bucket, Key=name, **arguments)
        return answer

    def _full(self, key: str) -> str:
        check_key(key)
        return "/".join(part for part in (self.bucket, self.prefix, key) if part)

    @contextmanager
    def _errors(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except (OSError, BotoCoreError, ClientError) as error:
            source = error.__cause__ if isinstance(error.__cause__, ClientError) else error
            code = code_of(source)
            if code in _MISSING_CODES or (isinstance(error, FileNotFoundError) and not code):
                raise MissingKeyError(
                    f"{self.uri}: expected {key}, found nothing there."
                ) from source
            raise StoreError(explain(source, action=action, key=key, uri=self.uri)) from source


def _environment() -> tuple[tuple[str, str], ...]:
    """The AWS variables as they are now: all settings of a connection."""
    return tuple(sorted(one for one in os.environ.items() if one[0].startswith("AWS_")))


@lru_cache(maxsize=4)
def _connect(process: int, environment: tuple[tuple[str, str], ...]) -> s3fs.S3FileSystem:
    """One connection a process and a set of AWS variables, which are the only settings.

    Both arguments are there to tell connections apart: s3fs reads the environment itself.
    """
    del process, environment
    connection = s3fs.S3FileSystem(
        skip_instance_cache=True,
        use_listings_cache=False,
        config_kwargs={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": READ_TIMEOUT_S,
            "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
        },
    )
    connection.retries = ATTEMPTS
    return connection


def _age_s(written: datetime, answer: Mapping[str, Any]) -> float:
    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    return (now - written).total_seconds()


@lru_cache(maxsize=4)
def _session(environment: tuple[tuple[str, str], ...]) -> botocore.session.Session:
    """Where credentials come from; kept, because finding them reads files or asks a service."""
    del environment
    return botocore.session.get_session()


def _polars_options(uri: str) -> dict[str, Any]:
    """Storage options for polars' own S3 client, from the same sources as botocore's.

    Raises:
        StoreError: there are no credentials.
    """
    session = _session(_environment())
    credentials = session.get_credentials()
    if credentials is None:
        raise StoreError(
            f"{uri}: expected S3 credentials, found none. Set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY."
        )
    keys = credentials.get_frozen_credentials()
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    region = os.environ.get("AWS_REGION") or session.get_config_variable("region")
    options: dict[str, Any] = {
        "aws_access_key_id": keys.access_key,
        "aws_secret_access_key": keys.secret_key,
        "aws_session_token": keys.token or "",
        "aws_endpoint_url": endpoint,
        "aws_region": region or _DEFAULT_REGION,
        "aws_allow_http": "true" if endpoint.startswith("http://") else "",
        "max_retries": ATTEMPTS,
        "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
        "timeout": f"{TRANSFER_TIMEOUT_S}s",
    }
    return {name: value for name, value in options.items() if value}
