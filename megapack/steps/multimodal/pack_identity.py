"""What the rows of a multimodal job depend on, as an address: the same inputs, the same rows.

Files count by name below their source and by content; where they stand does not count. Parquet and
JSONL files are read once for their digest, which is kept in the store under their fingerprint; the
image files of a JSONL source count by size and fingerprint (ETag, or time of last change).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from megapack.jobs.multimodal import (
    GroupKind,
    MultimodalJob,
    PackMultimodalJob,
    SampleGroup,
    SampleSource,
)
from megapack.records.digest import step_address
from megapack.steps.source_content import content_of
from megapack.store.location import Location, open_location
from megapack.store.source_files import source_file
from megapack.store.source_listing import find_files

SEMANTICS = 1
_RECORDS = (".parquet", ".jsonl")
_PLACES = {"uri", "images", "metadata"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a job reads.

    Attributes:
        address: digest of all that its rows depend on.
        files: SHA-256 of each Parquet and JSONL file, by uri.
    """

    address: str
    files: Mapping[str, str]


def identity_of(job: PackMultimodalJob, *, tokenizer_digest: str) -> Identity:
    """What a job reads, as it is now.

    Args:
        job: the job.
        tokenizer_digest: of the tokenizer's files.

    Raises:
        ConfigError: a source's scheme is unknown.
        StoreError: the store failed.
    """
    store = open_location(job.store)
    files: dict[str, str] = {}
    content: dict[str, object] = {}
    for group in job.stream.groups:
        for source in group.sources:
            name = f"{group.name}/{source.name}"
            content[name] = _content(group, source, store, files)
    inputs = {
        "stream": _meaning(job.stream),
        "epochs": job.epochs,
        "rows_per_part": job.rows_per_part,
        "tokenizer": tokenizer_digest,
        "content": content,
    }
    return Identity(address=step_address("pack-multimodal", SEMANTICS, inputs), files=files)


def _meaning(stream: MultimodalJob) -> dict[str, object]:
    """The job without the places of its files."""
    found = stream.model_dump(mode="json", exclude={"tokenizer"})
    for group in found["groups"]:
        group["sources"] = [
            {name: value for name, value in source.items() if name not in _PLACES}
            for source in group["sources"]
        ]
    return found


def _content(
    group: SampleGroup, source: SampleSource, store: Location, files: dict[str, str]
) -> list[dict[str, str]]:
    """Digests of a source's record files and hints at its image files, by name below the source."""
    listing = find_files(source.uri)
    records: dict[str, str] = {}
    for name in filter(_holds_records, listing.files):
        uri = listing.uri_of(name)
        found = source_file(listing.filesystem, uri, listing.files[name])
        files[uri] = records[listing.relative(name)] = content_of(found, store=store)
    if group.kind is not GroupKind.UNDERSTANDING:
        return [records]
    beside = find_files(source.images or listing.uri_of(listing.base))
    images = {
        beside.relative(name): source_file(
            beside.filesystem, beside.uri_of(name), beside.files[name]
        ).fingerprint
        for name in beside.files
        if not _holds_records(name)
    }
    return [records, images]


def _holds_records(name: str) -> bool:
    return name.lower().endswith(_RECORDS)
