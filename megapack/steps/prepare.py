"""All data steps of a job in one process: split, tokenize, pack, audit.

What the flow does, without Prefect. A rerun does only what is missing here too, because each step
finds its own result.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from megapack.jobs.prepare import PrepareJob
from megapack.records.refs import DatasetRef, TableRef
from megapack.steps.audit import AuditReport, audit
from megapack.steps.pack import pack
from megapack.steps.preflight import check_prepare
from megapack.steps.split import list_sources, split_source
from megapack.steps.tokenize import tokenize_part
from megapack.steps.wording import counted

ROW_UNITS = 1000
"""Units of a stage that works through rows."""
OnDone = Callable[[int, str], None]
"""Told how much of a stage is done, and a few words on it."""


class Watcher:
    """Shows how work goes on; this one shows nothing."""

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[OnDone]:
        """A stage of work.

        Args:
            name: one word.
            total: units of it.

        Yields:
            What is to be told how many units are done.
        """
        del name, total
        yield lambda _done, _words: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What `prepare` made.

    Attributes:
        dataset: the version; `reused` when it stood there already.
        audit: what the audit found.
    """

    dataset: DatasetRef
    audit: AuditReport


def prepare(job: PrepareJob, *, watcher: Watcher | None = None) -> Prepared:
    """Run all data steps of a job.

    Args:
        job: the preparation job.
        watcher: shows how it goes on.

    Returns:
        The dataset version and its audit; nothing is raised for a violation.

    Raises:
        ConfigError: the job, a source or the tokenizer is wrong.
        DataError: a source file is wrong, or nothing can be placed.
        StoreError: the store failed.
    """
    watching = watcher or Watcher()
    checked(job, watcher=watching)
    dataset = pack_sources(job, watcher=watching)
    return Prepared(dataset=dataset, audit=audited(dataset, watcher=watching))


def pack_sources(job: PrepareJob, *, watcher: Watcher) -> DatasetRef:
    """Split, tokenize and pack; raises as `prepare` does."""
    conversations, documents = tokenized_sources(job, watcher=watcher)
    with watcher.stage("pack", ROW_UNITS) as done:
        dataset = pack(
            job, conversations=conversations, documents=documents, on_rows=rows_done(done)
        )
        done(ROW_UNITS, size_of(dataset))
    return dataset


def checked(job: PrepareJob, *, watcher: Watcher) -> None:
    """What can be told before any work; raises as `prepare` does."""
    with watcher.stage("check", 1) as done:
        done(1, "; ".join(line.removeprefix("preflight ") for line in check_prepare(job)))


def tokenized_sources(
    job: PrepareJob, *, watcher: Watcher
) -> tuple[list[TableRef], list[TableRef]]:
    """Split and tokenize: tables of conversations and of documents; raises as `prepare` does."""
    conversations = _split(job, watcher)
    return conversations, _tokenize(job, conversations, watcher)


def audited(dataset: DatasetRef, *, watcher: Watcher) -> AuditReport:
    """Audit a version; nothing is raised for a violation. Raises StoreError."""
    with watcher.stage("audit", ROW_UNITS) as done:
        report = audit(dataset, on_rows=rows_done(done))
        done(ROW_UNITS, f"{report.num_checks:,} checks, {len(report.violations):,} violations")
    return report


def size_of(dataset: DatasetRef) -> str:
    """Rows and tokens of a version, in words."""
    return f"{counted(dataset.num_rows, 'row')}, {dataset.num_real_tokens:,} tokens"


def rows_done(done: OnDone) -> Callable[[int, int], None]:
    """Tell a stage of `ROW_UNITS` how many rows are done, once a unit.

    Args:
        done: what the stage is told with.
    """
    told = -1

    def rows(count: int, total: int) -> None:
        nonlocal told
        share = ROW_UNITS * count // max(1, total)
        if share != told:
            told = share
            done(share, f"{count:,} of {counted(total, 'row')}")

    return rows


def _split(job: PrepareJob, watcher: Watcher) -> list[TableRef]:
    shards = list_sources(job)
    tables: list[TableRef] = []
    with watcher.stage("split", len(shards)) as done:
        for shard in shards:
            at = len(tables)

            def told(records: int, *, at: int = at, name: str = shard.label) -> None:
                done(at, f"{name}: {records:,} records")

            tables.append(split_source(job, shard, on_progress=told))
        records = sum(table.num_records for table in tables)
        dropped = sum(table.num_dropped for table in tables)
        read = f"{counted(len(shards), 'file')}, {counted(records, 'conversation')}"
        done(len(shards), f"{read}, {dropped:,} dropped")
    return tables


def _tokenize(job: PrepareJob, conversations: list[TableRef], watcher: Watcher) -> list[TableRef]:
    total = sum(table.num_records for table in conversations)
    parts = [(table, index) for table in conversations for index in range(table.num_parts)]
    tables: list[TableRef] = []
    with watcher.stage("tokenize", total) as done:
        before = 0
        for number, (table, index) in enumerate(parts, start=1):

            def told(count: int, *, before: int = before, number: int = number) -> None:
                done(before + count, f"part {number} of {len(parts)}")

            tables.append(tokenize_part(job, table, index, on_progress=told))
            before = total * number // len(parts)
        documents = sum(table.num_records for table in tables)
        dropped = sum(table.num_dropped for table in tables)
        done(total, f"{counted(documents, 'document')}, {dropped:,} dropped")
    return tables
