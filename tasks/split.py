"""Tasks: list the files of all sources, and read one of them into conversations."""

from prefect import task
from prefect.logging import get_run_logger

from megapack.jobs.prepare import PrepareJob
from megapack.records.refs import TableRef
from megapack.steps import split as step
from tasks.progress import Clock
from tasks.retry import RETRIES, RETRY_DELAYS_S, reused_or_done, store_or_rank_failed

_LOG_EVERY_S = 10.0


@task(
    name="list-sources",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def list_sources(job: PrepareJob) -> tuple[step.SourceShard, ...]:
    """Every file of every source, in reading order."""
    shards = step.list_sources(job)
    get_run_logger().info("sources files=%d", len(shards))
    return shards


@task(
    name="split",
    task_run_name="split-{shard.label}",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def split_source(job: PrepareJob, shard: step.SourceShard) -> TableRef:
    """One source file -> conversations."""
    logger, clock = get_run_logger(), Clock(interval_s=_LOG_EVERY_S)
    clock.due()

    def on_progress(records: int) -> None:
        if clock.due():
            logger.info("split file=%s records=%d so far", shard.label, records)

    ref = step.split_source(job, shard, on_progress=on_progress)
    logger.info(
        "split file=%s conversations=%d dropped=%d reused=%s",
        shard.uri,
        ref.num_records,
        ref.num_dropped,
        ref.reused,
    )
    return reused_or_done(ref)  # type: ignore[return-value]  # Prefect unwraps a returned state
