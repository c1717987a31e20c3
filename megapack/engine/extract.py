"""One extraction run: forward only, each document's payload to the store, one commit at the end.

Rows are taken in stored order, training split first; each dp rank takes one stretch of them, so
that the order of documents over all parts does not depend on dp. A document that stands in
several rows is written where it stands first. Payloads leave the device microbatch by microbatch
and the host part by part: memory is bounded by one part. A run that is stopped leaves parts that
no version names, and starts afresh.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import torch.distributed as dist

from megapack.batch.iterate import step_batch
from megapack.engine.checkpoint import load_weights
from megapack.engine.evaluate import evaluating
from megapack.engine.metric_log import MetricLog
from megapack.engine.rows import RowSource
from megapack.engine.schedule import Phase, SchedulePlan, run_schedule
from megapack.engine.starting import read_folder
from megapack.errors import ContractError
from megapack.jobs.addresses import extract_address
from megapack.jobs.extract import ExtractJob
from megapack.model.build import build_model
from megapack.outputs.head import Record
from megapack.outputs.teacher import TeacherPayloadHead
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from megapack.records.payload import PayloadKind, TeacherPayload
from megapack.records.refs import FolderRef
from megapack.steps.launch.protocol import RunFiles
from megapack.store.location import open_location
from megapack.store.manifest import Contents, Part, PartKind, Split
from megapack.store.part_reader import PartReader
from megapack.store.schema import PayloadInfo, SchemaId
from megapack.store.sinks import PayloadSink, payload_counts
from megapack.store.versions import commit

_ROWS_AT_ONCE = 16
_SPLITS = (Split.TRAIN, Split.VALIDATION)

_logger = logging.getLogger(__name__)

Item = tuple[Split, int]
"""Split and row number inside it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstOnly:
    """Hands each document of this rank's rows to a sink once, where it stands first.

    Attributes:
        sink: takes payloads.
        done: ids that another rank or an earlier row has written; grows.
    """

    sink: PayloadSink
    done: set[str] = field(default_factory=set)

    def __call__(self, records: Sequence[Record]) -> None:
        """Take the records of one microbatch."""
        for record in records:
            if not isinstance(record, TeacherPayload):
                raise ContractError(
                    f"extraction: expected teacher payloads, found {type(record).__name__}."
                )
            if record.document_id not in self.done:
                self.done.add(record.document_id)
                self.sink.add(record)


def run_extraction(job: ExtractJob, context: ParallelContext, scratch: Path) -> int:
    """Collective over the world: extract all chosen rows and commit the payload.

    Args:
        job: what to extract, from what, where to.
        context: an initialised context of the job's sizes.
        scratch: node-local folder of the run.

    Returns:
        Documents written, over all ranks.

    Raises:
        StoreError: the store failed.
        DataError: a checkpoint file or a part is damaged.
    """
    run = f"extract-{extract_address(job)[:16]}" if dist.get_rank() == 0 else None
    source = RowSource.open(job.dataset, run=run)
    try:
        return _extract(job, context, scratch, source)
    finally:
        source.close()


def _extract(job: ExtractJob, context: ParallelContext, scratch: Path, source: RowSource) -> int:
    """Collective over the world: all chosen rows of an open dataset."""
    chunks = build_model(
        job.model,
        context=context,
        vocab_size=job.model.vocabulary(source.vocab_size),
        backend=job.settings.backend,
        seed=None,
    )
    if isinstance(job.checkpoint, FolderRef):
        read_folder(job.checkpoint, job.model, chunks, context)
    else:
        load_weights(job.checkpoint, chunks, context, scratch / "teacher")
    items = [
        (split, number)
        for split in _SPLITS
        for number in source.numbers(split, job.settings.max_rows)
    ]
    first, last = stretch(len(items), rank=context.dp_rank, size=context.sizes.dp)
    info = payload_info(job, source)
    sink = FirstOnly(
        sink=PayloadSink(open_location(job.output), info=info),
        done=_written_before(source, items, first, last),
    )
    head = TeacherPayloadHead(dtype=info.dtype, temperature=info.temperature)
    log = MetricLog(RunFiles(scratch=scratch).metrics if dist.get_rank() == 0 else None)
    rows_done = 0
    with evaluating(chunks):
        for rows in _batches(source, items[first:last], total=len(items), dp=context.sizes.dp):
            batch = step_batch(
                rows,
                context=context,
                row_length=source.row_length,
                granularity=source.granularity,
            )
            plan = SchedulePlan(step=batch, head=head, phase=Phase.FORWARD_ONLY, sink=sink)
            run_schedule(chunks, plan, context)
            rows_done += batch.normalizer.num_rows
            log.write({"kind": "extraction", "rows": rows_done, "total_rows": len(items)})
    parts = _gather_parts(sink.sink.close(), context)
    if dist.get_rank() == 0:
        _commit(job, parts, info)
    dist.barrier()
    return payload_counts(parts)["num_documents"]


def stretch(total: int, *, rank: int, size: int) -> tuple[int, int]:
    """First and one past last of the items that a rank takes; all but the last take equally many.

    >>> [stretch(7, rank=rank, size=3) for rank in range(3)]
    [(0, 3), (3, 6), (6, 7)]
    """
    share = -(-total // size)
    return min(rank * share, total), min((rank + 1) * share, total)


def payload_info(job: ExtractJob, source: RowSource) -> PayloadInfo:
    """What all payloads of a job share."""
    return PayloadInfo(
        kind=PayloadKind.HIDDEN,
        dtype=job.settings.hidden_dtype,
        width=job.model.hidden_size,
        temperature=job.settings.temperature,
        vocab_size=job.model.vocabulary(source.vocab_size),
        teachers=(job.checkpoint.digest,),
    )


def _batches(
    source: RowSource, mine: Sequence[Item], *, total: int, dp: int
) -> Iterator[tuple[PackedRow, ...]]:
    """This rank's rows, some at a time; equally many batches on every rank, the last ones empty."""
    longest = -(-total // dp)
    for begin in range(0, longest, _ROWS_AT_ONCE):
        now = mine[begin : begin + _ROWS_AT_ONCE]
        yield tuple(
            row
            for split in _SPLITS
            for row in source.read(split, [number for of, number in now if of is split])
        )


def _written_before(source: RowSource, items: Sequence[Item], first: int, last: int) -> set[str]:
    """Ids in this rank's stretch that stand in an earlier row already."""
    if first == 0:
        return set()
    committed = source.dataset.committed
    reader = PartReader(open_location(committed.uri))
    ids: list[pl.Series] = []
    for split in _SPLITS:
        wanted = sum(of is split for of, _ in items)
        columns = [
            reader.read(part, columns=("document_ids",))["document_ids"]
            for part in committed.manifest.parts_of(PartKind.ROWS, split)
        ]
        if columns:
            ids.append(pl.concat(columns).head(wanted))
    rows = pl.concat(ids)
    before, own = rows.head(first).explode(), rows.slice(first, last - first).explode()
    return set(own.filter(own.is_in(before.unique().implode())).drop_nulls().to_list())


def _gather_parts(parts: tuple[Part, ...], context: ParallelContext) -> list[Part]:
    """Collective over the world: all parts, in the order of the dp ranks' stretches."""
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, (context.dp_rank, parts))
    return [part for _, own in sorted(everyones, key=lambda one: one[0]) for part in own]


def _commit(job: ExtractJob, parts: list[Part], info: PayloadInfo) -> None:
    contents = Contents(
        schema_id=SchemaId.TEACHER_PAYLOAD,
        kind="payload",
        parts=parts,
        address=extract_address(job),
        counts=payload_counts(parts),
        settings=job.model_dump(mode="json"),
        parents={"dataset": job.dataset.digest, "checkpoint": job.checkpoint.digest},
        payload=info,
    )
    version = commit(open_location(job.output), contents.manifest()).version
    _logger.info("payload committed version=%d parts=%d", version, len(parts))
