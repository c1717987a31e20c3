"""Task: check a dataset version before anything trains on it."""

from prefect import task
from prefect.logging import get_run_logger

from megapack.records.refs import DatasetRef
from megapack.steps import audit as step
from megapack.steps.audit_record import found_sound, record_sound
from tasks.progress import Begin, LiveProgress
from tasks.retry import RETRIES, RETRY_DELAYS_S, reused_or_done, store_or_rank_failed


@task(
    name="audit",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def audit(dataset: DatasetRef) -> DatasetRef:
    """Manifest and rows hold what they promise, or the task fails with the list of violations.

    A version that an earlier run found sound is not read again.
    """
    if dataset.reused and found_sound(dataset):
        return reused_or_done(dataset)  # type: ignore[return-value]  # Prefect unwraps a state
    progress = LiveProgress(key="audit-progress", description="reading", begin=Begin.WHEN_LONG)
    report = step.audit(dataset, on_rows=progress.rows)
    get_run_logger().info(
        "audit rows=%d checks=%d violations=%d",
        report.num_rows,
        report.num_checks,
        len(report.violations),
    )
    report.check()
    record_sound(dataset)
    return dataset.model_copy(update={"reused": False})
