"""`open_location`: which kind of location stands behind a uri."""

import os
from pathlib import Path

from megapack.errors import ConfigError
from megapack.store.local_folder import LocalFolder
from megapack.store.objects import Location, MissingKeyError, ParquetSource, StoredKey

__all__ = ["Location", "MissingKeyError", "ParquetSource", "StoredKey", "open_location"]


def open_location(uri: str | os.PathLike[str]) -> Location:
    """The location behind a path, a `file://` uri or an `s3://` uri.

    Nothing is created or contacted yet. S3 credentials, region and endpoint come from the
    standard `AWS_*` variables (also `AWS_ENDPOINT_URL`) or the AWS configuration files.

    Raises:
        ConfigError: another scheme, or an `s3://` uri without a bucket.
    """
    text = os.fspath(uri)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return LocalFolder(Path(text))
    if scheme == "file":
        return LocalFolder(Path("/" + rest.lstrip("/")))
    if scheme == "s3":
        # Loaded here, because s3fs costs about a second that local folders need not pay.
        from megapack.store.s3_prefix import S3Prefix

        return S3Prefix(rest)
    raise ConfigError(
        f"store {text!r}: expected a local path, file:// or s3://, found scheme {scheme!r}. "
        "Copy the data to one of these."
    )
