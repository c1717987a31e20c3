"""Read committed tables back: by reference, part by part, checked against their digests."""

from collections.abc import Iterator

import polars as pl

from megapack.records.refs import Ref
from megapack.store.committed import Committed
from megapack.store.location import open_location
from megapack.store.manifest import Part, PartKind
from megapack.store.part_reader import PartReader, Verify
from megapack.store.versions import read_version


def committed(ref: Ref) -> Committed:
    """The version that a reference names.

    Raises:
        ConfigError: there is no such version.
        StoreError: the store failed, or its content is not what the reference says.
    """
    found = read_version(ref.uri, ref.version)
    found.check_ref(ref)
    return found


def parts(version: Committed, kind: PartKind) -> Iterator[tuple[Part, pl.DataFrame]]:
    """The parts of a kind with their records, in the manifest's order, one at a time.

    Raises:
        StoreError: a part is missing, or the store failed.
        DataError: a part's bytes are not those of the manifest.
    """
    reader = PartReader(open_location(version.uri), verify=Verify.SHA256)
    for part in version.manifest.parts_of(kind):
        yield part, reader.read(part)
