"""What a job would make, told from a sample that goes through the real steps.

Nothing is written to the job's store: the steps run in a temporary folder that is removed. Without
a sample limit all sources go through them, and every number but the time is that of the job.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megapack.conversation.config import LongDocumentPolicy
from megapack.errors import ConfigError, DataError
from megapack.jobs.prepare import PrepareJob
from megapack.layout.pack_layout import padded_lengths
from megapack.records.drops import DropReason
from megapack.records.refs import DatasetRef
from megapack.steps.plan_sample import Basis, Sample, sample, whole
from megapack.steps.prepare import Watcher, pack_sources
from megapack.steps.report import packing_report
from megapack.steps.report_details import PackingDetails, packing_details
from megapack.steps.report_origin import origin
from megapack.steps.tables import committed
from megapack.store.manifest import PartKind

CONTEXT_PARALLEL = (1, 2, 4, 8)
"""Context parallel sizes whose padding is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """What one source would give.

    Attributes:
        basis: what is known of it.
        documents: documents placed.
        tokens: their tokens.
        targets: trained tokens among them.
    """

    basis: Basis
    documents: int
    tokens: int
    targets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlan:
    """What a policy for long documents would keep.

    Attributes:
        policy: the policy.
        trained: trained tokens kept, over all before anything is cut. Tokens would mislead: pieces
            of a split conversation repeat its system message.
        dropped: documents dropped as too long.
    """

    policy: LongDocumentPolicy
    trained: float
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobPlan:
    """What a job would make.

    Attributes:
        exact: whether all sources were read.
        sources: by source, in the job's order.
        train_rows: rows of the training side.
        rows: rows of both sides.
        fill: real tokens over positions.
        num_bytes: bytes of the parts that hold rows.
        drops: documents dropped, by reason.
        policies: what each policy for long documents keeps; none when no document is long.
        long_conversations: conversations looked at that the job splits, cuts or drops.
        padding: positions of slots that hold padding, over positions, by context parallel size.
        row_length: positions in a row.
    """

    exact: bool
    sources: tuple[SourcePlan, ...]
    train_rows: int
    rows: int
    fill: float
    num_bytes: int
    drops: dict[DropReason, int]
    policies: tuple[PolicyPlan, ...]
    long_conversations: int
    padding: dict[int, float]
    row_length: int

    @property
    def documents(self) -> int:
        """Documents placed."""
        return sum(one.documents for one in self.sources)

    @property
    def tokens(self) -> int:
        """Tokens placed."""
        return sum(one.tokens for one in self.sources)

    @property
    def targets(self) -> int:
        """Trained tokens."""
        return sum(one.targets for one in self.sources)


def plan_job(job: PrepareJob, *, records: int | None, watcher: Watcher) -> JobPlan:
    """Say what a job would make.

    Args:
        job: the job.
        records: records of each source to look at; None for all.
        watcher: shows how it goes on.

    Raises:
        ConfigError: the job, a source or the tokenizer is wrong.
        DataError: a source is wrong, or nothing could be placed.
        StoreError: a source cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="megapack-plan-") as name:
        if records is None:
            chosen = Sample(job=job, bases=whole(job), originals={})
        else:
            chosen = sample(job, Path(name), records=records)
        small = chosen.job.model_copy(update={"store": f"{name}/store"})
        # A job that stops at the first long document is told how many there are.
        if small.tokenize.long_documents is LongDocumentPolicy.ERROR:
            small = _with_policy(small, LongDocumentPolicy.DROP)
        with _original_names(chosen):
            ref = pack_sources(small, watcher=watcher)
            policies = _policies(small, ref, watcher=watcher)
        return _plan(small, ref, chosen.bases, policies=policies, exact=records is None)


@contextmanager
def _original_names(chosen: Sample) -> Iterator[None]:
    """Errors name the files of the job, not the copies."""
    try:
        yield
    except (ConfigError, DataError) as error:
        text = str(error)
        for copy, original in chosen.originals.items():
            text = text.replace(copy, original)
        raise type(error)(text) from error


def _with_policy(job: PrepareJob, policy: LongDocumentPolicy) -> PrepareJob:
    tokenize = job.tokenize.model_copy(update={"long_documents": policy})
    return job.model_copy(update={"tokenize": tokenize})


def _long(ref: DatasetRef) -> int:
    """Conversations that are too long, whatever became of them."""
    made = origin(ref)
    touched = (
        made.split_conversations + made.truncated_documents - made.dropped_pieces if made else 0
    )
    return max(0, touched) + packing_report(ref).drops.documents.get(DropReason.TOO_LONG, 0)


def _all_targets(refs: Mapping[LongDocumentPolicy, DatasetRef]) -> int:
    """Trained tokens before anything is cut: what truncating keeps and what it counts as lost."""
    made = origin(refs[LongDocumentPolicy.TRUNCATE])
    whole = made.target_tokens + made.lost_target_tokens if made else 0
    return max(whole, *(one.num_target_tokens for one in refs.values()), 1)


def _policies(job: PrepareJob, ref: DatasetRef, *, watcher: Watcher) -> tuple[PolicyPlan, ...]:
    """The other policies on the same records, when any document is long."""
    if not _long(ref):
        return ()
    refs = {job.tokenize.long_documents: ref}
    for policy in (LongDocumentPolicy.SPLIT, LongDocumentPolicy.TRUNCATE, LongDocumentPolicy.DROP):
        if policy not in refs:
            other = _with_policy(job, policy).model_copy(update={"name": policy.value})
            with watcher.stage(policy.value, 1) as done:
                refs[policy] = pack_sources(other, watcher=Watcher())
                done(1, f"for comparison: {refs[policy].num_target_tokens:,} trained tokens")
    whole = _all_targets(refs)
    return tuple(
        PolicyPlan(
            policy=policy,
            trained=one.num_target_tokens / whole,
            dropped=packing_report(one).drops.documents.get(DropReason.TOO_LONG, 0),
        )
        for policy, one in sorted(refs.items(), key=lambda item: -item[1].num_target_tokens)
    )


def _plan(
    job: PrepareJob,
    ref: DatasetRef,
    bases: tuple[Basis, ...],
    *,
    policies: tuple[PolicyPlan, ...],
    exact: bool,
) -> JobPlan:
    report, details = packing_report(ref), packing_details(ref)
    found = {one.name: one for one in details.sources}
    sources = []
    for basis in bases:
        own, times = found.get(basis.source), 1 / basis.share if basis.share else 1.0
        counts = (0, 0, 0) if own is None else (own.documents, own.tokens, own.targets)
        documents, tokens, targets = (round(count * times) for count in counts)
        sources.append(SourcePlan(basis=basis, documents=documents, tokens=tokens, targets=targets))
    tokens = sum(one.tokens for one in sources)
    growth = tokens / max(1, ref.num_real_tokens)
    parts = committed(ref).manifest.parts_of(PartKind.ROWS)
    rows = [math.ceil(one.rows * growth) if one.rows else 0 for one in report.splits]
    return JobPlan(
        exact=exact or all(one.basis.share == 1.0 for one in sources),
        sources=tuple(sources),
        train_rows=rows[0],
        rows=sum(rows),
        fill=ref.num_real_tokens / (ref.num_rows * job.pack.row_length),
        num_bytes=round(sum(part.size for part in parts) * growth),
        drops={reason: round(n * growth) for reason, n in report.drops.documents.items()},
        policies=policies,
        long_conversations=_long(ref),
        padding=_padding(details),
        row_length=job.pack.row_length,
    )


def _padding(details: PackingDetails) -> dict[int, float]:
    """Share of slot positions that padding takes, by context parallel size."""
    lengths = np.arange(details.lengths.size, dtype=np.int64)
    real = int((lengths * details.lengths).sum())
    shares = {}
    for size in CONTEXT_PARALLEL:
        slots = padded_lengths(lengths, 2 * size if size > 1 else 1).astype(np.int64)
        shares[size] = 1 - real / max(1, int((slots * details.lengths).sum()))
    return shares
