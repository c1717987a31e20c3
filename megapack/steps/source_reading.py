"""Records of one source file to conversations: recognised, cut, checked; or dropped, and why."""

from collections.abc import Iterator
from dataclasses import dataclass

from megapack.conversation.messages import document_id
from megapack.conversation.parse import parse_conversation
from megapack.conversation.rejection import RejectedError
from megapack.conversation.shapes import ACCEPTED_SHAPES, read_shape
from megapack.conversation.split import Merged, split_conversations
from megapack.errors import DataError
from megapack.records.drops import Drop, DropReason
from megapack.records.stored_conversation import StoredConversation
from megapack.steps.drops_part import DropSink
from megapack.store.raw_record import RawRecord
from megapack.store.source_files import FileShape, SourceFile
from megapack.store.source_records import read_records

_WRONG_FILE = {DropReason.UNKNOWN_SHAPE, DropReason.UNREADABLE}
_NO_JSON = (ValueError, TypeError, RecursionError)


@dataclass(slots=True, kw_only=True)
class SourceReading:
    """One pass over a file: counts and drops gather while conversations are handed out.

    Attributes:
        file: what is read.
        source: name of its source.
        format: prompt format of its source.
        drops: takes what cannot be used.
        records: records read so far.
        kept: conversations handed out so far.
        first: the first drop.
    """

    file: SourceFile
    source: str
    format: str
    drops: DropSink
    records: int = 0
    kept: int = 0
    first: Drop | None = None

    def conversations(self) -> Iterator[StoredConversation]:
        """The conversations of the file, in its order.

        Raises:
            DataError: the file as a whole cannot be read.
            StoreError: the store failed.
        """
        merged = Merged.NO
        if self.file.shape is FileShape.MERGED_LINES:
            merged = Merged.AT_SYSTEM_MESSAGES
        for record in read_records(self.file):
            self.records += 1
            for one in self._of_record(record, merged=merged):
                self.kept += 1
                yield one

    def check(self) -> None:
        """Refuse a file of which nothing could be read as conversations.

        Raises:
            DataError: every record is unreadable or of unknown shape.
        """
        first = self.first
        if first is None or self.kept:
            return
        if set(self.drops.ledger.documents) <= _WRONG_FILE:
            raise DataError(
                f"source file {self.file.uri}: expected records of the shape {ACCEPTED_SHAPES}; "
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
                format=self.format,
                source=self.source,
                uri=self.file.uri,
                line=record.line,
                ordinal=ordinal,
            )

    def _drop(
        self, record: RawRecord, rejection: RejectedError, *, ordinal: int | None = None
    ) -> None:
        where = "" if ordinal is None else f"conversation {ordinal} of the record: "
        drop = Drop(
            reason=rejection.reason,
            detail=where + rejection.detail,
            uri=self.file.uri,
            line=record.line,
        )
        self.first = self.first or drop
        self.drops.add(drop)


def _no_json(error: Exception) -> RejectedError:
    if isinstance(error, RecursionError):
        return RejectedError(DropReason.UNREADABLE, "expected JSON, found it nested too deeply.")
    return RejectedError(
        DropReason.UNKNOWN_SHAPE,
        "expected text, finite numbers, truth values, lists and objects; found what JSON cannot "
        f"hold: {str(error)[:200]}.",
    )
