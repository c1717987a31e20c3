"""What an extraction would store and how long it would take, before anything starts."""

from collections.abc import Iterator
from dataclasses import dataclass

from megapack.jobs.extract import ExtractJob
from megapack.steps.extraction.chosen_rows import choose_rows
from megapack.steps.extraction.earlier_payloads import earlier_payloads, stored_per_position
from megapack.steps.extraction.payload_size import (
    PayloadSize,
    check_budget,
    payload_info,
    payload_size,
    shard_rows,
)
from megapack.steps.extraction.rate import Rate, Told, rate_of
from megapack.steps.wording import byte_size, counted
from megapack.store.versions import read_version

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractPlan:
    """What an extraction would do.

    Attributes:
        size: bytes, by kind.
        rows: rows that are run.
        documents: documents that are written.
        positions: their positions.
        tokens_run: real tokens that pass the teacher.
        shards: what is recorded one by one.
        shard_rows: rows of each.
        ranks: processes.
        rate: how fast it goes, None when nothing is known.
        max_bytes: the limit, None when there is none.
    """

    size: PayloadSize
    rows: int
    documents: int
    positions: int
    tokens_run: int
    shards: int
    shard_rows: int
    ranks: int
    rate: Rate | None
    max_bytes: int | None

    @property
    def seconds(self) -> float | None:
        """How long it would take, without starting ranks and loading the teacher."""
        return None if self.rate is None else self.tokens_run / self.rate.tokens_per_s

    def check(self) -> None:
        """Refuse what is over the limit.

        Raises:
            ConfigError: it would store more than `max_bytes`.
        """
        check_budget(self.size, self.max_bytes)


def plan_extraction(job: ExtractJob, told: Told | None = None) -> ExtractPlan:
    """Say what an extraction would do. Reads narrow columns of the dataset; starts nothing.

    Args:
        job: the extraction.
        told: what a person says about speed.

    Raises:
        ConfigError: dataset or settings are wrong, or there is nothing to extract.
        StoreError: the store failed.
        DataError: a part of the dataset is damaged.
    """
    source = read_version(job.dataset.uri, job.dataset.version)
    source.check_ref(job.dataset)
    packed = source.manifest.packed_info()
    info = payload_info(job, packed)
    chosen = choose_rows(source, job.settings)
    earlier = earlier_payloads(job)
    each = shard_rows(job.settings, info.kinds, row_length=packed.row_length)
    return ExtractPlan(
        size=payload_size(
            job.settings, job.model, packed, chosen, seen=stored_per_position(earlier)
        ),
        rows=chosen.num_rows,
        documents=chosen.num_documents,
        positions=chosen.num_positions,
        tokens_run=chosen.tokens_run,
        shards=-(-chosen.num_rows // each),
        shard_rows=each,
        ranks=job.settings.parallel.sizes().world_size,
        rate=rate_of(job, chosen, told or Told(), vocab_size=info.vocab_size, earlier=earlier),
        max_bytes=job.settings.max_bytes,
    )


def plan_lines(plan: ExtractPlan) -> Iterator[str]:
    """A plan in lines for a person."""
    yield (
        f"would extract {counted(plan.documents, 'document')} of {plan.positions:,} positions "
        f"from {counted(plan.rows, 'row')}"
    )
    for kind, size in plan.size.kinds:
        each = size / max(1, plan.positions)
        width = f" x {kind.width:,}" if kind.width else ""
        yield (
            f"  {kind.kind.value:<10} {byte_size(size):>12}  {kind.dtype.value}{width}, "
            f"{each:,.1f} bytes a position"
            + (" of a varied teacher" if kind in plan.size.guessed else " as before")
        )
    yield f"  {'index':<10} {byte_size(plan.size.index):>12}"
    if plan.size.lm_head:
        yield f"  {'LM head':<10} {byte_size(plan.size.lm_head):>12}"
    yield f"  {'vocabulary':<10} {byte_size(plan.size.vocabulary):>12}  at most"
    limit = "no limit" if plan.max_bytes is None else f"limit {byte_size(plan.max_bytes)}"
    yield f"  {'in all':<10} {byte_size(plan.size.total):>12}  {plan.size.total:,} or so, {limit}"
    yield (
        f"  {counted(plan.shards, 'shard')} of at most "
        f"{counted(min(plan.shard_rows, plan.rows), 'row')}: a run that is "
        "stopped does the shards again that were under way"
    )
    if plan.rate is None or plan.seconds is None:
        yield (
            "  time       not known: no extraction with this teacher stands in the store. Say it "
            "to megapack plan with --tokens-per-s or --device-flops"
        )
        return
    yield (
        f"  time       about {_duration(plan.seconds)} on {counted(plan.ranks, 'rank')}: "
        f"{plan.tokens_run:,} tokens at {plan.rate.tokens_per_s:,.0f} a second, by "
        f"{plan.rate.basis}; without starting and loading"
    )


def _duration(seconds: float) -> str:
    for unit, name in ((_DAY, "days"), (_HOUR, "hours"), (_MINUTE, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:,.1f} seconds"
