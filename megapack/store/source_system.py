"""The fsspec file system of a source: local, or S3 by the AWS variables. Nothing is remembered."""

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import fsspec
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

from megapack.errors import ConfigError, StoreError
from megapack.store.s3_failures import explain

_CONNECT_TIMEOUT_S = 3
_READ_TIMEOUT_S = 60
_ATTEMPTS = 3


def file_system(uri: str) -> tuple[Any, str]:
    """The fsspec file system of a uri, without a listing cache, and the path in it.

    Raises:
        ConfigError: another scheme than local, `file://` and `s3://`.
    """
    scheme, separator, _ = uri.partition("://")
    if separator and scheme not in ("file", "s3"):
        raise ConfigError(
            f"source {uri}: expected a local path, file:// or s3://, found scheme {scheme!r}."
        )
    if scheme == "s3":
        environment = tuple(sorted(kv for kv in os.environ.items() if kv[0].startswith("AWS_")))
        filesystem = _s3(os.getpid(), environment)
        return filesystem, str(filesystem._strip_protocol(uri))
    filesystem, path = fsspec.core.url_to_fs(uri)
    return filesystem, str(path)


@lru_cache(maxsize=4)
def _s3(process: int, environment: tuple[tuple[str, str], ...]) -> Any:  # noqa: ANN401 - untyped
    """One connection a process and a set of AWS variables, which s3fs reads by itself."""
    del process, environment
    return fsspec.filesystem(
        "s3",
        skip_instance_cache=True,
        use_listings_cache=False,
        config_kwargs={
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "read_timeout": _READ_TIMEOUT_S,
            "retries": {"mode": "standard", "total_max_attempts": _ATTEMPTS},
        },
    )


def guarded[Result](call: Callable[[], Result], *, action: str, uri: str) -> Result:
    """Run a call to a store; what it raises becomes a StoreError with advice.

    Raises:
        StoreError: the store failed or refused.
    """
    try:
        return call()
    except (OSError, ClientError, BotoCoreError) as error:
        raise StoreError(explain(error, action=action, key="source files", uri=uri)) from error
