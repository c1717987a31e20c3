"""Read committed tables back: by reference, part by part, checked against their digests."""

import logging
from collections.abc import Iterator, Sequence

import polars as pl

from megapack.errors import StoreError
from megapack.records.refs import Ref
from megapack.store.committed import Committed
from megapack.store.location import Location, open_location
from megapack.store.manifest import Part, PartKind
from megapack.store.part_reader import PartReader, Verify
from megapack.store.versions import check_parts, find_address, read_version

_logger = logging.getLogger(__name__)


def committed(ref: Ref) -> Committed:
    """The version that a reference names.

    Raises:
        ConfigError: there is no such version.
        StoreError: the store failed, or its content is not what the reference says.
    """
    found = read_version(ref.uri, ref.version)
    found.check_ref(ref)
    return found


def usable_version(location: Location, address: str) -> Committed | None:
    """The version made from these inputs; None when there is none or objects of it are gone.

    Raises:
        StoreError: the store failed.
    """
    found = find_address(location, address)
    return found if found is not None and is_whole(location, found) else None


def is_whole(location: Location, version: Committed) -> bool:
    """Whether every object of a version still stands; a log line says what is missing."""
    try:
        check_parts(location, version.manifest.parts)
    except StoreError as error:
        _logger.warning(
            "version incomplete, made again uri=%s version=%d: %s",
            version.uri,
            version.version,
            error,
        )
        return False
    return True


def parts(
    version: Committed,
    kind: PartKind,
    *,
    verify: Verify = Verify.SHA256,
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[Part, pl.DataFrame]]:
    """The parts of a kind with their records, in the manifest's order, one at a time.

    Args:
        version: a version.
        kind: which of its parts.
        verify: how each part is checked; `DISCARD` for tables that a rerun makes again.
        columns: column names, all by default.

    Raises:
        StoreError: a part is missing, or the store failed.
        DataError: a part's bytes are not those of the manifest.
    """
    reader = PartReader(open_location(version.uri), verify=verify)
    for part in version.manifest.parts_of(kind):
        yield part, reader.read(part, columns=columns)
