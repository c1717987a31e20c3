"""One extraction run: forward only, every document's payload to the store, one commit at the end.

Rows are taken in stored order and cut into shards that depend on neither layout nor dp; shards
are dealt to the dp ranks. Payloads leave the device microbatch by microbatch. A shard that is
complete is encoded, uploaded and recorded in the background while the next one is computed; one
more waits at most, so host memory is bounded by two shards. A run that is started again skips the
shards that are recorded.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from megapack.batch.iterate import step_batch
from megapack.engine.checkpoint import load_weights
from megapack.engine.evaluate import evaluating
from megapack.engine.extract_progress import ExtractProgress
from megapack.engine.metric_log import MetricLog
from megapack.engine.publish_payload import Extracted, publish_payload
from megapack.engine.rows import RowSource
from megapack.engine.schedule import Phase, SchedulePlan, run_schedule
from megapack.engine.shard_rounds import Round, ShardPlan, plan_shards
from megapack.engine.shard_sink import ShardSink
from megapack.engine.shard_writer import ShardWriter
from megapack.engine.starting import read_folder
from megapack.jobs.addresses import extract_address
from megapack.jobs.extract import ExtractJob
from megapack.jobs.outputs import LogitsForm
from megapack.model.build import build_model
from megapack.outputs.source import LogitReading
from megapack.outputs.teacher import PayloadHead
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from megapack.records.refs import FolderRef
from megapack.steps.extraction.chosen_rows import SPLITS, RowPlace
from megapack.steps.extraction.payload_size import payload_info
from megapack.steps.launch.protocol import RunFiles
from megapack.store.location import open_location
from megapack.store.schema import PayloadInfo
from megapack.store.shard_log import ShardLog

_ROWS_AT_ONCE = 16

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtractRun:
    """Everything that a shard needs.

    Attributes:
        chunks: the teacher.
        context: this rank.
        source: rows of the dataset.
        head: gives the payloads.
        plan: which rows, in which shards.
        writer: takes finished shards.
        progress: counts and metrics.
    """

    chunks: Sequence[Any]
    context: ParallelContext
    source: RowSource
    head: PayloadHead
    plan: ShardPlan
    writer: ShardWriter
    progress: ExtractProgress


def run_extraction(job: ExtractJob, context: ParallelContext, scratch: Path) -> int:
    """Collective over the world: extract all chosen rows and commit the payload.

    Args:
        job: what to extract, from what, where to.
        context: an initialised context of the job's sizes.
        scratch: node-local folder of the run.

    Returns:
        Documents of the payload, over all ranks and runs.

    Raises:
        StoreError: the store failed; on all ranks alike when a shard could not be written.
        DataError: a checkpoint file or a part is damaged, or an output is no number.
    """
    run = f"extract-{extract_address(job)[:16]}" if dist.get_rank() == 0 else None
    source = RowSource.open(job.dataset, run=run)
    try:
        return _extract(job, context, scratch, source)
    finally:
        source.close()


def _extract(job: ExtractJob, context: ParallelContext, scratch: Path, source: RowSource) -> int:
    """Collective over the world: all chosen rows of an open dataset."""
    info = payload_info(job, source.dataset.info)
    location = open_location(job.output)
    log = ShardLog(location, extract_address(job))
    metrics = RunFiles(scratch=scratch).metrics if dist.get_rank() == 0 else None
    plan = plan_shards(job, info, source, log)
    chunks = _teacher(job, context, scratch, source)
    run = ExtractRun(
        chunks=chunks,
        context=context,
        source=source,
        head=payload_head(job, info),
        plan=plan,
        writer=ShardWriter(location, log, info, context.device),
        progress=ExtractProgress(MetricLog(metrics), plan, context),
    )
    with evaluating(chunks):
        for one in plan.rounds(dp=context.sizes.dp):
            _run_round(run, one)
        run.writer.finish()
    measured = run.progress.end(run.writer)
    extracted = Extracted(plan=plan, parts=run.writer.parts, run=measured)
    return publish_payload(job, info, chunks, context, extracted)


def payload_head(job: ExtractJob, info: PayloadInfo) -> PayloadHead:
    """The head that gives what a job stores."""
    return PayloadHead(
        kinds=tuple((one.kind, one.dtype) for one in info.kinds),
        top_k=job.settings.payload.top_k,
        temperature=job.settings.temperature,
        reading=LogitReading(
            form=LogitsForm.BY_CHUNKS, tokens_per_chunk=job.settings.tokens_per_chunk
        ),
    )


def _teacher(
    job: ExtractJob, context: ParallelContext, scratch: Path, source: RowSource
) -> Sequence[Any]:
    """Collective over the world: the model with its weights."""
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
    return chunks


def _run_round(run: ExtractRun, one: Round) -> None:
    """Collective over the world: a shard on each dp rank that has one."""
    number = one.shard_of(run.context.dp_rank)
    places = run.plan.places(number)
    sink = ShardSink(tuple(kind for kind, _ in run.head.kinds))
    for begin in range(0, one.most_rows, _ROWS_AT_ONCE):
        started = time.perf_counter()
        now = places[begin : begin + _ROWS_AT_ONCE]
        rows = _read(run.source, now)
        sink.expect(rows, now)
        batch = step_batch(
            rows,
            context=run.context,
            row_length=run.source.row_length,
            granularity=run.source.granularity,
        )
        plan = SchedulePlan(step=batch, head=run.head, phase=Phase.FORWARD_ONLY, sink=sink)
        run_schedule(run.chunks, plan, run.context)
        run.progress.add(batch.normalizer, seconds=time.perf_counter() - started)
        run.writer.look()
        run.progress.show(run.writer)
    payloads = sink.take() if run.context.is_writer else ()
    number = number if run.context.is_writer else None
    run.writer.put(number, payloads, beside=len(one.numbers))


def _read(source: RowSource, places: Sequence[RowPlace]) -> tuple[PackedRow, ...]:
    return tuple(
        row
        for split in SPLITS
        for row in source.read(split, [one.number for one in places if one.split is split])
    )
