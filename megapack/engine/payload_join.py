"""`PayloadJoin`: the payloads of teachers beside the rows of steps and of evaluations.

A document's values are read by its id and laid into whatever row holds it, so packing, order and
layout of the student are its own. Only ranks of the last pipeline stage read.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from megapack.batch.fields import AttachFields, RowFields
from megapack.batch.iterate import StepBatch
from megapack.batch.join import groups_of
from megapack.engine.payload_fields import PayloadFields, check_positions, widest
from megapack.engine.payload_reader import Documents, PayloadReader, Unit
from megapack.errors import DataError
from megapack.jobs.distill import Distillation
from megapack.records.packed_row import PackedRow
from megapack.records.payload import TeacherPayload
from megapack.steps.distill.teachers import OpenTeacher, common_dtype
from megapack.store.step_stream import RankStep


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PayloadJoin:
    """Joins rows with payloads.

    Attributes:
        teachers: all of the job.
        fields: what a payload becomes.
        rows_per_unit: packed rows of one microbatch.
        executor: one thread, which reads.
        training: what is read for the steps to come.
    """

    teachers: tuple[OpenTeacher, ...]
    fields: PayloadFields
    rows_per_unit: int
    executor: ThreadPoolExecutor
    training: PayloadReader

    @classmethod
    def open(
        cls, distill: Distillation, teachers: tuple[OpenTeacher, ...], *, rows_per_unit: int
    ) -> "PayloadJoin":
        """The join of a job.

        Args:
            distill: the job's part.
            teachers: opened.
            rows_per_unit: packed rows of one microbatch.
        """
        kind = distill.settings.kind
        fields = PayloadFields(
            kind=kind, dtype=common_dtype(teachers, kind), width=widest(teachers, kind)
        )
        executor = ThreadPoolExecutor(1, thread_name_prefix="megapack-payloads")

        def read(unit: Unit) -> Documents:
            return read_documents(unit, teachers, fields)

        return cls(
            teachers=teachers,
            fields=fields,
            rows_per_unit=rows_per_unit,
            executor=executor,
            training=PayloadReader(read=read, executor=executor),
        )

    def close(self) -> None:
        """End the background reads."""
        self.executor.shutdown(wait=True, cancel_futures=True)

    def ahead(self, steps: Iterator[RankStep]) -> Iterator[RankStep]:
        """The same steps; payloads of the step after each are read while it runs."""
        upcoming = next(steps, None)
        if upcoming is not None:
            self._plan(upcoming)
        while upcoming is not None:
            current, upcoming = upcoming, next(steps, None)
            if upcoming is not None:
                self._plan(upcoming)
            yield current

    def of_step(self, batch: StepBatch, planned: RankStep) -> StepBatch:
        """The step's microbatches with the payloads of their documents."""
        self.training.begin(_key(planned))
        return self._with(batch, self.training)

    def of_rows(self, batch: StepBatch, rows: Sequence[PackedRow]) -> StepBatch:
        """Microbatches of an evaluation, made of these rows, with the payloads of their documents.

        Args:
            batch: made of the rows.
            rows: this dp rank's.
        """
        reader = PayloadReader(read=self.training.read, executor=self.executor)
        reader.plan(0, groups_of(rows, self.rows_per_unit))
        return self._with(batch, reader)

    def _plan(self, planned: RankStep) -> None:
        self.training.plan(_key(planned), groups_of(planned.rows, self.rows_per_unit))

    def _with(self, batch: StepBatch, reader: PayloadReader) -> StepBatch:
        def fields(row: PackedRow) -> RowFields:
            return self.fields.of_row(row, reader.take(row))

        return replace(batch, stages=(*batch.stages, AttachFields(source=fields)))


def read_documents(rows: Unit, teachers: Sequence[OpenTeacher], fields: PayloadFields) -> Documents:
    """Values of all documents of rows, each from the teacher whose payload holds it.

    Args:
        rows: as the dataset holds them.
        teachers: all.
        fields: what a payload becomes.

    Raises:
        DataError: a document has no payload, or one of other positions.
        StoreError: the store failed.
    """
    found: dict[str, tuple[OpenTeacher, TeacherPayload]] = {}
    sources = {
        document_id: source
        for row in rows
        for document_id, source in zip(
            row.document_ids, row.sources or ("",) * len(row.document_ids), strict=True
        )
    }
    for teacher in teachers:
        asked = [one for one, of in sources.items() if one not in found and teacher.takes(of)]
        payloads = teacher.payloads.fetch(asked, fields.kind) if asked else {}
        found |= {one: (teacher, payload) for one, payload in payloads.items()}
    missing = [one for one in sources if one not in found]
    if missing:
        raise DataError(
            f"expected a payload of kind {fields.kind.value} for {len(sources)} documents, found "
            f"none for {len(missing)} of them, the first {missing[0]}. Extract payloads from the "
            "dataset version in use."
        )
    digests = {one: (teacher, payload.labels_digest) for one, (teacher, payload) in found.items()}
    for row in rows:
        check_positions(row, digests)
    return {one: fields.of_document(payload, teacher) for one, (teacher, payload) in found.items()}


def _key(planned: RankStep) -> int:
    """Rises from step to step."""
    return planned.plan.next_consumed
