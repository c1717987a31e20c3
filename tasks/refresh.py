"""Tasks: publish what changed as a new dataset version, and let go of what nothing needs."""

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.logging import get_run_logger

from megapack.jobs.prepare import PrepareJob
from megapack.jobs.refresh import RefreshSettings
from megapack.records.refs import DatasetRef, TableRef
from megapack.steps import refresh as step
from megapack.steps import retain as retention
from megapack.steps.report import packing_report
from megapack.steps.tables import committed
from tasks.progress import Begin, LiveProgress
from tasks.retry import RETRIES, RETRY_DELAYS_S, reused_or_done, store_or_rank_failed


@task(
    name="refresh",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def refresh_dataset(
    job: PrepareJob,
    settings: RefreshSettings,
    conversations: list[TableRef],
    documents: list[TableRef],
) -> DatasetRef:
    """New and removed documents -> a version that shares the other rows, with what changed."""
    progress = LiveProgress(key="pack-progress", description="planning", begin=Begin.WHEN_LONG)
    ref = step.refresh(
        job,
        conversations=conversations,
        documents=documents,
        mode=settings.mode,
        on_rows=progress.rows,
    )
    changes = committed(ref).manifest.changes
    lines = ["nothing changed"] if ref.reused or changes is None else changes.lines()
    report = packing_report(ref)
    for line in [*lines, *report.lines()]:
        get_run_logger().info(line)
    where = f"{ref.uri} version {ref.version}"
    text = "\n".join(lines)
    create_markdown_artifact(f"```\n{text}\n```", key="changes", description=where)
    create_table_artifact(table=report.table(), key="packing-report", description=where)
    return reused_or_done(ref)  # type: ignore[return-value]  # Prefect unwraps a returned state


@task(
    name="retain",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def retain_versions(job: PrepareJob, settings: RefreshSettings) -> None:
    """Retire old versions, and delete parts and tables that nothing needs."""
    done = retention.retain(job, keep_versions=settings.keep_versions)
    get_run_logger().info(done.line())
