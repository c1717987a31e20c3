"""Task: one part of conversations to documents."""

from prefect import task
from prefect.logging import get_run_logger

from megapack.jobs.prepare import PrepareJob
from megapack.records.refs import TableRef
from megapack.steps import tokenize as step
from tasks.progress import Begin, LiveProgress
from tasks.retry import RETRIES, RETRY_DELAYS_S, reused_or_done, store_or_rank_failed


@task(
    name="tokenize",
    task_run_name="tokenize-{title}-{part_index}",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def tokenize_part(
    job: PrepareJob, conversations: TableRef, part_index: int, title: str = "part"
) -> TableRef:
    """One part of conversations -> documents with target runs; the title names their file."""
    progress = LiveProgress(key="tokenize-progress", description=title, begin=Begin.WHEN_LONG)
    total = min(conversations.num_records, job.records_per_shard)
    ref = step.tokenize_part(
        job,
        conversations,
        part_index,
        on_progress=lambda done: progress.show(
            min(1.0, done / total), f"{title}: {done} conversations"
        ),
    )
    get_run_logger().info(
        "tokenize source=%s part=%d documents=%d dropped=%d reused=%s",
        title,
        part_index,
        ref.num_records,
        ref.num_dropped,
        ref.reused,
    )
    return reused_or_done(ref)  # type: ignore[return-value]  # Prefect unwraps a returned state
