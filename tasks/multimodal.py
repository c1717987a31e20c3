"""Tasks of multimodal packing: check the job, pack, audit, show."""

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from megapack.jobs.multimodal import PackMultimodalJob
from megapack.records.refs import MultimodalRef
from megapack.steps.audit_record import found_sound, record_sound
from megapack.steps.multimodal import audit as auditing
from megapack.steps.multimodal import pack as packing
from megapack.steps.multimodal.preflight import check_multimodal
from megapack.steps.multimodal.report import multimodal_report
from megapack.steps.multimodal.report_shown import report_markdown
from tasks.progress import Begin, LiveProgress
from tasks.retry import RETRIES, RETRY_DELAYS_S, reused_or_done, store_or_rank_failed


@task(
    name="preflight-multimodal",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def preflight_multimodal(job: PackMultimodalJob) -> int:
    """Refuse a wrong job, and say how much there is to do; the number of samples."""
    checked = check_multimodal(job)
    for line in checked.lines:
        get_run_logger().info(line)
    for line in checked.warnings:
        get_run_logger().warning(line)
    return checked.num_samples


@task(
    name="pack-multimodal",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def pack_multimodal(job: PackMultimodalJob, num_samples: int) -> MultimodalRef:
    """All samples -> packed rows, committed as one version; a retry goes on where it stopped."""
    progress = LiveProgress(key="pack-progress", description="reading", begin=Begin.WHEN_LONG)
    ref = packing.pack_multimodal(
        job,
        on_samples=lambda done: progress.show(
            min(1.0, done / max(1, num_samples)), f"{done} of {num_samples} samples"
        ),
    )
    get_run_logger().info(
        "packed rows=%d samples=%d uri=%s version=%d reused=%s",
        ref.num_rows,
        ref.num_samples,
        ref.uri,
        ref.version,
        ref.reused,
    )
    return reused_or_done(ref)  # type: ignore[return-value]  # Prefect unwraps a returned state


@task(
    name="audit-multimodal",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def audit_multimodal(dataset: MultimodalRef) -> MultimodalRef:
    """Manifest and rows hold what they promise; what was found sound before is not read again."""
    if dataset.reused and found_sound(dataset):
        return reused_or_done(dataset)  # type: ignore[return-value]  # Prefect unwraps a state
    progress = LiveProgress(key="audit-progress", description="reading", begin=Begin.WHEN_LONG)
    report = auditing.audit_multimodal(dataset, on_rows=progress.rows)
    get_run_logger().info(
        "audit rows=%d checks=%d violations=%d",
        report.num_rows,
        report.num_checks,
        len(report.violations),
    )
    report.check()
    record_sound(dataset)
    return dataset.model_copy(update={"reused": False})


@task(
    name="report-multimodal",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def report_multimodal(dataset: MultimodalRef) -> None:
    """Counts, groups, what was left out, and pictures of rows, in the log and as an artifact."""
    for line in multimodal_report(dataset).lines():
        get_run_logger().info(line)
    create_markdown_artifact(
        report_markdown(dataset),
        key="multimodal-rows",
        description=f"{dataset.uri} version {dataset.version}",
    )
