"""Task: documents to packed rows, published as a dataset version, with a report."""

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.logging import get_run_logger

from megapack.jobs.prepare import PrepareJob
from megapack.records.refs import DatasetRef, TableRef
from megapack.steps import pack as step
from megapack.steps.report import packing_report
from megapack.steps.report_page import report_markdown
from tasks.progress import Begin, LiveProgress
from tasks.retry import RETRIES, RETRY_DELAYS_S, reused_or_done, store_or_rank_failed


@task(
    name="pack",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def pack(job: PrepareJob, conversations: list[TableRef], documents: list[TableRef]) -> DatasetRef:
    """All documents -> packed rows, committed as one version."""
    progress = LiveProgress(key="pack-progress", description="planning", begin=Begin.WHEN_LONG)
    ref = step.pack(job, conversations=conversations, documents=documents, on_rows=progress.rows)
    report = packing_report(ref)
    for line in report.lines():
        get_run_logger().info(line)
    create_table_artifact(
        table=report.table(), key="packing-report", description=f"{ref.uri} version {ref.version}"
    )
    create_markdown_artifact(
        report_markdown(ref), key="packing-pictures", description="Lengths, fill, trained share"
    )
    return reused_or_done(ref)  # type: ignore[return-value]  # Prefect unwraps a returned state
