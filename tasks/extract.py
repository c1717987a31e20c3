"""Task: packed rows and a checkpoint to teacher payloads."""

from prefect import task
from prefect.logging import get_run_logger

from megapack.jobs.extract import ExtractJob
from megapack.records.refs import PayloadRef
from megapack.steps import extract as step
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
    ref = step.extract(
        job,
        on_line=lambda rank, line: logger.info("[rank %d] %s", rank, line),
        on_metric=lambda metric: logger.info("metric %s", dict(metric)),
    )
    logger.info(
        "payload documents=%d positions=%d uri=%s version=%d",
        ref.num_documents,
        ref.num_positions,
        ref.uri,
        ref.version,
    )
    return reused_or_done(ref)  # type: ignore[return-value]  # Prefect unwraps a returned state
