"""Task: sum up a run, in its log and as an artifact."""

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from megapack.records.refs import CheckpointRef, DatasetRef, PayloadRef
from megapack.steps.summary import summary_lines
from tasks.retry import RETRIES, RETRY_DELAYS_S, store_or_rank_failed


@task(
    name="summary",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def summarize(dataset: DatasetRef, checkpoint: CheckpointRef, payload: PayloadRef | None) -> None:
    """Documents, rows, evaluation loss before and after, addresses, and what was reused."""
    lines = summary_lines(dataset, checkpoint, payload)
    for line in lines:
        get_run_logger().info(line)
    text = "\n".join(lines)
    create_markdown_artifact(f"```\n{text}\n```", key="summary", description="what the run made")
