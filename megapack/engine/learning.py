"""What a run learns from: the labels alone, or the payloads of teachers as well."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from megapack.engine.payload_join import PayloadJoin
from megapack.engine.rows import RowSource
from megapack.engine.teacher_heads import teacher_columns
from megapack.jobs.distill import Distillation
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.model.build import padded_vocab_size
from megapack.outputs.distill import DistillHead
from megapack.outputs.head import OutputHead
from megapack.outputs.loss import Averaging, training_head
from megapack.outputs.source import LogitReading
from megapack.parallel.context import ParallelContext
from megapack.steps.distill.teachers import (
    OpenTeacher,
    common_dtype,
    common_temperature,
    open_teachers,
)
from megapack.store.part_cache import PartCache

_MEANS = ("divergence", "nll")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learning:
    """The loss of a run, and what it needs beside the rows.

    Attributes:
        head: the loss.
        payloads: what rows are joined with; None without teachers, and on ranks that need none.
        means: metrics of the head that evaluations report besides the loss.
    """

    head: OutputHead
    payloads: PayloadJoin | None = None
    means: tuple[str, ...] = ()


def learn(job: TrainJob, source: RowSource, context: ParallelContext, scratch: Path) -> Learning:
    """Collective over the world: what a job learns from.

    Args:
        job: the training job.
        source: its rows.
        context: this rank.
        scratch: node-local folder of the run; payloads are cached in it.

    Raises:
        ConfigError: teachers do not serve.
        DataError: a shard of an LM head is damaged.
        StoreError: the store failed.
    """
    settings = job.settings
    averaging = Averaging(mean=settings.loss, sources=_sources_to_tell_apart(source))
    if job.distill is None:
        return Learning(head=training_head(averaging, settings.outputs))
    vocab_size = settings.model.vocabulary(source.vocab_size)
    cache = payload_cache(job.distill, scratch)
    teachers = open_teachers(job.distill, vocab_size=vocab_size, cache=cache)
    return _from_teachers(job.distill, teachers, settings, averaging, context)


def payload_cache(distill: Distillation, scratch: Path) -> PartCache:
    """Where this node keeps parts of payloads that come from a remote store."""
    scratch.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(scratch).free
    return PartCache(scratch / "payloads", limit_bytes=distill.cache_bytes or free // 2)


def _from_teachers(
    distill: Distillation,
    teachers: tuple[OpenTeacher, ...],
    settings: TrainSettings,
    averaging: Averaging,
    context: ParallelContext,
) -> Learning:
    vocab_size = teachers[0].vocabulary.teacher_of.size
    tp = context.sizes.tp
    padded = padded_vocab_size(vocab_size, multiple=settings.model.vocab_multiple, tp=tp)
    kind, how = distill.settings.kind, settings.outputs
    head = DistillHead(
        settings=distill.settings,
        temperature=common_temperature(teachers, distill.settings),
        teachers=teacher_columns(teachers, kind=kind, columns=padded // tp, context=context),
        dtype=common_dtype(teachers, kind),
        averaging=averaging,
        reading=LogitReading(form=how.logits, tokens_per_chunk=how.tokens_per_chunk),
    )
    join = None
    if context.is_last_stage:
        join = PayloadJoin.open(distill, teachers, rows_per_unit=settings.rows_per_microbatch)
    return Learning(head=head, payloads=join, means=_MEANS)


def _sources_to_tell_apart(source: RowSource) -> tuple[str, ...]:
    """Collective over the world: names of the dataset's sources, none when there is only one."""
    box = [source.source_names() if dist.get_rank() == 0 else ()]
    dist.broadcast_object_list(box)
    return box[0] if len(box[0]) > 1 else ()
