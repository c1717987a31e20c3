"""Source files -> conversations: read, recognised, cut at system messages, checked, known by id.

One call reads one file. What cannot be used is kept as a drop with its line and reason; a file in
which nothing has a known shape is refused, because it is the wrong file.

The result stands at an address that follows from the file's content: a file that was touched or
renamed is not read into conversations again, and its records keep the uri under which they were
first seen. Memory holds the conversations of one part, at most about `_PART_CHARACTERS` of them.
"""

from collections.abc import Callable, Iterator, Sequence

from pydantic import BaseModel, ConfigDict

from megapack.jobs.prepare import PrepareJob
from megapack.records.digest import step_address
from megapack.records.refs import TableRef
from megapack.records.stored_conversation import StoredConversation
from megapack.steps.drops_part import DropSink
from megapack.steps.source_content import check_unchanged, content_of
from megapack.steps.source_reading import SourceReading
from megapack.steps.tables import usable_version
from megapack.store.conversation_table import (
    CONVERSATIONS_SCHEMA_ID,
    conversations_to_frame,
)
from megapack.store.location import open_location
from megapack.store.manifest import Contents, Part, PartKind
from megapack.store.schema import SCHEMA_KEY
from megapack.store.source_files import SourceFile, list_files
from megapack.store.versions import commit
from megapack.store.writer import PartForm, write_part

SPLIT_SEMANTICS = 3
_GROUP_RECORDS = 1000
_PART_CHARACTERS = 64 << 20

_FORM = PartForm(
    schema=None,
    kind=PartKind.CONVERSATIONS,
    metadata={SCHEMA_KEY: CONVERSATIONS_SCHEMA_ID},
    group_records=_GROUP_RECORDS,
)

OnProgress = Callable[[int], None]
"""Told how many records have been read so far."""


class SourceShard(BaseModel):
    """One file of one source: the unit of the split step.

    Attributes:
        source: name of the source.
        format: prompt format of the source.
        uri: the file.
        size: bytes.
        fingerprint: changes when the file does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    format: str
    uri: str
    size: int
    fingerprint: str

    @property
    def label(self) -> str:
        """Short name of the file."""
        return self.uri.rsplit("/", 1)[-1]

    @property
    def title(self) -> str:
        """Name of the source, where it has one, and of the file."""
        source = self.source.rstrip("/")
        named = not self.uri.startswith(source) and "*" not in source
        return f"{source}/{self.label}" if named else self.label

    @property
    def file(self) -> SourceFile:
        """The file as it was listed."""
        return SourceFile(uri=self.uri, size=self.size, fingerprint=self.fingerprint)


def list_sources(job: PrepareJob) -> tuple[SourceShard, ...]:
    """Every file of every source, in reading order.

    The same file under two formats is two shards.

    Raises:
        ConfigError: a source has no files, or one that cannot be read.
        StoreError: the store failed.
    """
    return tuple(
        SourceShard(
            source=source.label,
            format=(source.format or job.tokenize.format).value,
            uri=file.uri,
            size=file.size,
            fingerprint=file.fingerprint,
        )
        for source in job.sources
        for file in list_files(source.uri)
    )


def split_source(
    job: PrepareJob, shard: SourceShard, *, on_progress: OnProgress | None = None
) -> TableRef:
    """Read one source file into conversations, in parts of at most `job.records_per_shard`.

    Args:
        job: the preparation job.
        shard: one of `list_sources`.
        on_progress: called after each part.

    Returns:
        The table; `reused` when it stood there already, and then the file is not read.

    Raises:
        DataError: nothing in the file has a known shape, or it cannot be decompressed.
        StoreError: the store failed, or the file changed while it was read.
    """
    content = content_of(shard.file, store=open_location(job.store))
    inputs = {
        "content": content,
        "suffixes": [shard.file.shape.value, shard.file.compression.value],
        "source": shard.source,
        "format": shard.format,
        "records_per_part": job.records_per_shard,
    }
    address = step_address("split", SPLIT_SEMANTICS, inputs)
    location = open_location(f"{job.store.rstrip('/')}/steps/split/{address}")
    found = usable_version(location, address)
    if found is not None:
        return _standing_for(shard, found.table_ref(reused=True))
    reading = SourceReading(
        file=shard.file, source=shard.source, format=shard.format, drops=DropSink(location)
    )
    parts: list[Part] = []
    for batch in _batches(reading.conversations(), size=job.records_per_shard):
        parts.append(write_part(location, conversations_to_frame(batch), form=_FORM))
        if on_progress is not None:
            on_progress(reading.records)
    check_unchanged(shard.file)
    reading.check()
    contents = Contents(
        schema_id=CONVERSATIONS_SCHEMA_ID,
        kind="conversations",
        parts=[*parts, *reading.drops.close()],
        address=address,
        counts={"records": reading.records, "conversations": reading.kept},
        drops=reading.drops.ledger,
        settings=inputs,
        files={shard.uri: content},
    )
    return _standing_for(shard, commit(location, contents.manifest()).table_ref())


def _standing_for(shard: SourceShard, table: TableRef) -> TableRef:
    return table.model_copy(update={"origin": shard.uri})


def _batches(
    conversations: Iterator[StoredConversation], *, size: int
) -> Iterator[Sequence[StoredConversation]]:
    batch: list[StoredConversation] = []
    characters = 0
    for one in conversations:
        batch.append(one)
        characters += len(one.conversation)
        if len(batch) == size or characters >= _PART_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
