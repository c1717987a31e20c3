"""Takes the payloads of one shard as they leave the teacher, and sees that none is missing."""

from collections.abc import Sequence

from megapack.errors import ContractError
from megapack.outputs.head import Record
from megapack.records.packed_row import PackedRow
from megapack.records.payload import PayloadKind, TeacherPayload
from megapack.steps.extraction.chosen_rows import RowPlace


class ShardSink:
    """Keeps one payload of each document that the shard writes and each kind.

    Args:
        kinds: what the teacher is asked for.
    """

    def __init__(self, kinds: tuple[PayloadKind, ...]) -> None:
        self._kinds = kinds
        self._expected: set[str] = set()
        self._taken: dict[tuple[str, PayloadKind], TeacherPayload] = {}

    def expect(self, rows: Sequence[PackedRow], places: Sequence[RowPlace]) -> None:
        """Say which rows come next, and which of their documents are written.

        Raises:
            ContractError: the rows are not those that were chosen.
        """
        for row, place in zip(rows, places, strict=True):
            if len(row.document_ids) != len(place.written):
                raise ContractError(
                    f"extraction: expected {len(place.written)} documents in row {place.number} of "
                    f"{place.split.value}, found {len(row.document_ids)}."
                )
            self._expected.update(
                name
                for name, written in zip(row.document_ids, place.written, strict=True)
                if written
            )

    def __call__(self, records: Sequence[Record]) -> None:
        """Take the records of one microbatch; those of documents written elsewhere are left."""
        for record in records:
            if not isinstance(record, TeacherPayload):
                raise ContractError(
                    f"extraction: expected teacher payloads, found {type(record).__name__}."
                )
            if record.document_id in self._expected:
                self._taken.setdefault((record.document_id, record.kind), record)

    def take(self) -> tuple[TeacherPayload, ...]:
        """All payloads, in the order in which they came.

        Raises:
            ContractError: a document is without one of its kinds.
        """
        missing = [
            (name, kind.value)
            for name in self._expected
            for kind in self._kinds
            if (name, kind) not in self._taken
        ]
        if missing:
            raise ContractError(
                f"extraction: expected a payload of every document and kind, found {len(missing)} "
                f"missing, such as {missing[0]}."
            )
        return tuple(self._taken.values())
