"""Task: one part of conversations to documents."""

from prefect import task
from prefect.logging import get_run_logger

from megapack.jobs.prepare import PrepareJob
from megapack.records.refs import TableRef
from megapack.steps import tokenize as step
from tasks.retry import RETRIES, RETRY_DELAYS_S, reused_or_done, store_or_rank_failed


@task(
    name="tokenize",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def tokenize_part(job: PrepareJob, conversations: TableRef, part_index: int) -> TableRef:
    """One part of conversations -> documents with target runs."""
    ref = step.tokenize_part(job, conversations, part_index)
    get_run_logger().info(
        "tokenize documents=%d dropped=%d reused=%s", ref.num_records, ref.num_dropped, ref.reused
    )
    return reused_or_done(ref)  # type: ignore[return-value]  # Prefect unwraps a returned state
