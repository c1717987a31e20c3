"""Source files -> conversations: read, recognised, cut at system messages, checked, known by id.

One call reads one file. What cannot be used is kept as a drop with its line and reason; a file in
which nothing has a known shape is refused, because it is the wrong file.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from megapack.conversation.messages import document_id
from megapack.conversation.parse import parse_conversation
from megapack.conversation.rejection import RejectedError
from megapack.conversation.shapes import ACCEPTED_SHAPES, read_shape
from megapack.conversation.split import Merged, split_conversations
from megapack.errors import DataError, StoreError
from megapack.jobs.prepare import PrepareJob
from megapack.records.digest import step_address
from megapack.records.drops import Drop, DropLedger, DropReason
from megapack.records.refs import TableRef
from megapack.records.stored_conversation import StoredConversation
from megapack.steps.drops_part import write_drops
from megapack.steps.tables import usable_version
from megapack.store.conversation_table import (
    CONVERSATIONS_SCHEMA_ID,
    conversations_to_frame,
)
from megapack.store.location import open_location
from megapack.store.manifest import Contents, Part, PartKind
from megapack.store.schema import SCHEMA_KEY
from megapack.store.source_files import FileShape, SourceFile, current_fingerprint, list_files
from megapack.store.source_records import RawRecord, read_records
from megapack.store.versions import commit
from megapack.store.writer import PartForm, write_part

SPLIT_SEMANTICS = 2
_GROUP_RECORDS = 1000
_WRONG_FILE = (DropReason.UNKNOWN_SHAPE, DropReason.UNREADABLE)
_NO_JSON = (ValueError, TypeError, RecursionError)

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
    inputs = shard.model_dump(mode="json") | {"records_per_part": job.records_per_shard}
    address = step_address("split", SPLIT_SEMANTICS, inputs)
    location = open_location(f"{job.store.rstrip('/')}/steps/split/{address}")
    found = usable_version(location, address)
    if found is not None:
        return found.table_ref(reused=True)
    reading = _Reading(shard=shard)
    parts: list[Part] = []
    for batch in _batches(reading.conversations(), size=job.records_per_shard):
        form = PartForm(
            schema=None,
            kind=PartKind.CONVERSATIONS,
            metadata={SCHEMA_KEY: CONVERSATIONS_SCHEMA_ID},
            group_records=_GROUP_RECORDS,
        )
        parts.append(write_part(location, conversations_to_frame(batch), form=form))
        if on_progress is not None:
            on_progress(reading.records)
    now = current_fingerprint(shard.uri)
    if now != shard.fingerprint:
        raise StoreError(
            f"source file {shard.uri}: expected fingerprint {shard.fingerprint}, as it was listed, "
            f"found {now or 'no file'}: the file changed while it was read, and nothing was kept. "
            "Run again when it is complete."
        )
    reading.check()
    contents = Contents(
        schema_id=CONVERSATIONS_SCHEMA_ID,
        kind="conversations",
        parts=[*parts, *write_drops(location, reading.drops)],
        address=address,
        counts={"records": reading.records, "conversations": reading.kept},
        drops=DropLedger.of(reading.drops),
        settings=inputs,
    )
    return commit(location, contents.manifest()).table_ref()


@dataclass(slots=True, kw_only=True)
class _Reading:
    """One pass over a file: counts and drops gather while conversations are handed out."""

    shard: SourceShard
    records: int = 0
    kept: int = 0
    drops: list[Drop] = field(default_factory=list)

    def conversations(self) -> Iterator[StoredConversation]:
        file = SourceFile(
            uri=self.shard.uri, size=self.shard.size, fingerprint=self.shard.fingerprint
        )
        merged = Merged.NO
        if file.shape is FileShape.MERGED_LINES:
            merged = Merged.AT_SYSTEM_MESSAGES
        for record in read_records(file):
            self.records += 1
            for one in self._of_record(record, merged=merged):
                self.kept += 1
                yield one

    def check(self) -> None:
        """Refuse a file of which nothing could be read as conversations.

        Raises:
            DataError: every record is unreadable or of unknown shape.
        """
        wrong = self.records and not self.kept
        if wrong and all(drop.reason in _WRONG_FILE for drop in self.drops):
            first = self.drops[0]
            raise DataError(
                f"source file {self.shard.uri}: expected records of the shape {ACCEPTED_SHAPES}; "
                f"none of its {self.records} records has one. Line {first.line + 1}: "
                f"{first.detail} "
                "Convert the file, or take it out of the sources."
            )

    def _of_record(self, record: RawRecord, *, merged: Merged) -> Iterator[StoredConversation]:
        if record.error:
            self._drop(record, RejectedError(DropReason.UNREADABLE, record.error))
            return
        try:
            parts = split_conversations(read_shape(record.value), merged=merged)
        except RejectedError as rejection:
            self._drop(record, rejection)
            return
        except _NO_JSON as error:
            self._drop(record, _no_json(error))
            return
        for ordinal, part in enumerate(parts):
            try:
                canonical = parse_conversation(part).dumps()
                name = document_id(canonical)
            except RejectedError as rejection:
                self._drop(record, rejection, ordinal=ordinal if len(parts) > 1 else None)
                continue
            except _NO_JSON as error:
                self._drop(record, _no_json(error), ordinal=ordinal if len(parts) > 1 else None)
                continue
            yield StoredConversation(
                document_id=name,
                conversation=canonical,
                format=self.shard.format,
                source=self.shard.source,
                uri=self.shard.uri,
                line=record.line,
                ordinal=ordinal,
            )

    def _drop(
        self, record: RawRecord, rejection: RejectedError, *, ordinal: int | None = None
    ) -> None:
        where = "" if ordinal is None else f"conversation {ordinal} of the record: "
        self.drops.append(
            Drop(
                reason=rejection.reason,
                detail=where + rejection.detail,
                uri=self.shard.uri,
                line=record.line,
            )
        )


def _no_json(error: Exception) -> RejectedError:
    if isinstance(error, RecursionError):
        return RejectedError(DropReason.UNREADABLE, "expected JSON, found it nested too deeply.")
    return RejectedError(
        DropReason.UNKNOWN_SHAPE,
        "expected text, finite numbers, truth values, lists and objects; found what JSON cannot "
        f"hold: {str(error)[:200]}.",
    )


def _batches(
    conversations: Iterator[StoredConversation], *, size: int
) -> Iterator[Sequence[StoredConversation]]:
    batch: list[StoredConversation] = []
    for one in conversations:
        batch.append(one)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
