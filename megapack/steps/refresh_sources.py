"""All steps of a refresh in one process: split, tokenize, refresh, audit, retain.

What the flow does, without Prefect. Only new and changed files are read and tokenized.
"""

from dataclasses import dataclass

from megapack.jobs.prepare import PrepareJob
from megapack.jobs.refresh import RefreshSettings
from megapack.records.refs import DatasetRef
from megapack.steps.audit_record import found_sound, record_sound
from megapack.steps.prepare import (
    ROW_UNITS,
    Watcher,
    audited,
    checked,
    rows_done,
    size_of,
    tokenized_sources,
)
from megapack.steps.refresh import refresh
from megapack.steps.retain import Retained, retain
from megapack.steps.tables import committed


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """What `refresh_sources` made.

    Attributes:
        dataset: the version; `reused` when it stood there already.
        changes: what changed, one line an event.
        violations: what the audit found, one line each.
        retained: what was let go; None when there are violations, so that the version before stays.
    """

    dataset: DatasetRef
    changes: tuple[str, ...]
    violations: tuple[str, ...]
    retained: Retained | None


def refresh_sources(
    job: PrepareJob, settings: RefreshSettings, *, watcher: Watcher | None = None
) -> Refreshed:
    """Bring a job's dataset up to date with its sources, audit it, and let old versions go.

    A version that was found sound before is not read again.

    Args:
        job: the preparation job.
        settings: the refresh.
        watcher: shows how it goes on.

    Raises:
        ConfigError: the job, a source or the tokenizer is wrong.
        DataError: a source file is wrong, or nothing can be placed.
        StoreError: the store failed, or other writers kept committing in between.
    """
    watching = watcher or Watcher()
    checked(job, watcher=watching)
    conversations, documents = tokenized_sources(job, watcher=watching)
    with watching.stage("refresh", ROW_UNITS) as done:
        dataset = refresh(
            job,
            conversations=conversations,
            documents=documents,
            mode=settings.mode,
            on_rows=rows_done(done),
        )
        done(ROW_UNITS, size_of(dataset))
    changes = committed(dataset).manifest.changes
    lines = () if dataset.reused or changes is None else tuple(changes.lines())
    violations: tuple[str, ...] = ()
    if not (dataset.reused and found_sound(dataset)):
        violations = audited(dataset, watcher=watching).violations
    retained = None
    if not violations:
        record_sound(dataset)
        with watching.stage("retain", 1) as done:
            retained = retain(job, keep_versions=settings.keep_versions)
            done(1, retained.line().removeprefix("retention "))
    return Refreshed(dataset=dataset, changes=lines, violations=violations, retained=retained)
