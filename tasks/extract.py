"""Task: packed rows and a checkpoint to teacher payloads."""

from collections.abc import Mapping
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from megapack.jobs.extract import ExtractJob
from megapack.records.refs import PayloadRef
from megapack.steps import extract as step
from tasks.progress import LiveProgress
from tasks.retry import RETRIES, RETRY_DELAYS_S, reused_or_done, store_or_rank_failed


@task(
    name="extract",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def extract_payload(job: ExtractJob) -> PayloadRef:
    """Start the ranks, relay what they say, and return the committed payload."""
    logger = get_run_logger()
    progress = LiveProgress(key="extraction-progress", description="starting ranks")

    def on_metric(metric: Mapping[str, Any]) -> None:
        done, total = metric["rows"], metric["total_rows"]
        progress.show(done / total, f"{done} of {total} rows")

    ref = step.extract(
        job, on_line=lambda rank, line: logger.info("[rank %d] %s", rank, line), on_metric=on_metric
    )
    progress.show(1.0, f"{ref.num_documents} documents: {ref.uri} version {ref.version}")
    logger.info(
        "payload documents=%d positions=%d uri=%s version=%d",
        ref.num_documents,
        ref.num_positions,
        ref.uri,
        ref.version,
    )
    return reused_or_done(ref)  # type: ignore[return-value]  # Prefect unwraps a returned state
