"""Read a manifest's bytes: of a known format, and unaltered."""

from pydantic import ValidationError

from megapack.errors import StoreError
from megapack.store.manifest import MANIFEST_FORMAT, Manifest


def parse_manifest(data: bytes, *, where: str) -> Manifest:
    """Read a manifest.

    Raises:
        StoreError: the bytes are no manifest, it is of another format, or its digest does not
            match its content.
    """
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["loc"] == ("manifest_format",):
            raise StoreError(
                f"{where}: expected a manifest of format {MANIFEST_FORMAT}, found format "
                f"{first['input']!r}. Read it with the version of megapack that wrote it."
            ) from error
        field_path = ".".join(str(one) for one in first["loc"]) or "manifest"
        raise StoreError(
            f"{where}: expected a manifest of format {MANIFEST_FORMAT}, found {len(data)} bytes "
            f"whose {field_path} is wrong: {first['msg']}. Check that the uri names a store of "
            "megapack."
        ) from error
    if manifest.digest != manifest.content_digest():
        raise StoreError(
            f"{where}: expected content digest {manifest.content_digest()}, found "
            f"{manifest.digest}: the manifest was altered. Restore it from a backup."
        )
    return manifest
