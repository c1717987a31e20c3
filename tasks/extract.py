"""Tasks: a dataset and a teacher to teacher payloads: found, planned, extracted, summed up."""

from collections.abc import Mapping
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from megapack.jobs.extract import ExtractJob, ExtractRequest
from megapack.records.refs import PayloadRef
from megapack.steps import extract as step
from megapack.steps.extraction.plan import plan_extraction, plan_lines
from megapack.steps.extraction.request import resolve_extraction
from megapack.steps.extraction.summary import payload_lines
from tasks.progress import LiveProgress
from tasks.retry import RETRIES, RETRY_DELAYS_S, reused_or_done, store_or_rank_failed


@task(
    name="resolve-teacher",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def resolve_payload(request: ExtractRequest) -> ExtractJob:
    """Find the dataset and the teacher, and name them by content."""
    job = resolve_extraction(request)
    get_run_logger().info(
        "dataset uri=%s version=%d; teacher uri=%s digest=%s",
        job.dataset.uri,
        job.dataset.version,
        job.checkpoint.uri,
        job.checkpoint.digest,
    )
    return job


@task(
    name="plan-payload",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def plan_payload(job: ExtractJob) -> None:
    """Say bytes and time before a rank starts; refuse what is over the limit."""
    plan = plan_extraction(job)
    for line in plan_lines(plan):
        get_run_logger().info(line)
    plan.check()


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
        progress.show(
            done / total,
            f"{done} of {total} rows, {metric['shards']} of {metric['total_shards']} shards stored",
        )

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


@task(
    name="payload-summary",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def summarize_payload(payload: PayloadRef) -> None:
    """Kinds, bytes, documents, speed and address, in the log and as an artifact."""
    lines = payload_lines(payload)
    for line in lines:
        get_run_logger().info(line)
    text = "\n".join(lines)
    create_markdown_artifact(f"```\n{text}\n```", key="summary", description="what was extracted")
