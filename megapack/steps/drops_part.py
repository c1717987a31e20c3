"""Drops as a part of a version: every left-out record with its place and reason."""

from collections.abc import Sequence

from megapack.records.drops import Drop
from megapack.store.document_frames import drops_to_frame
from megapack.store.location import Location
from megapack.store.manifest import Part, PartKind
from megapack.store.schema import SchemaId, file_metadata
from megapack.store.writer import PartForm, write_part

_GROUP_RECORDS = 1 << 16


def write_drops(location: Location, drops: Sequence[Drop]) -> list[Part]:
    """Write drops, in their order.

    Returns:
        One part, or none when there are no drops.

    Raises:
        StoreError: the store failed.
    """
    if not drops:
        return []
    form = PartForm(
        schema=SchemaId.DROPS,
        kind=PartKind.DROPS,
        metadata=file_metadata(SchemaId.DROPS),
        group_records=_GROUP_RECORDS,
    )
    return [write_part(location, drops_to_frame(drops), form=form)]
