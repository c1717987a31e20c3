"""Tasks of a distillation: what is asked for becomes a job; what came of it is summed up."""

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from megapack.jobs.distill import DistillRequest
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.records.refs import CheckpointRef
from megapack.steps.distill.resolve import resolve_distillation
from megapack.steps.distill.summary import distillation_lines
from tasks.retry import RETRIES, RETRY_DELAYS_S, store_or_rank_failed


@task(
    name="resolve-distillation",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def resolve_job(request: DistillRequest, settings: TrainSettings) -> TrainJob:
    """Name dataset and payloads by content; refuse what is not there."""
    job = resolve_distillation(request, settings)
    get_run_logger().info("dataset uri=%s version=%d", job.dataset.uri, job.dataset.version)
    if job.distill is not None:
        for number, teacher in enumerate(job.distill.teachers):
            ref = teacher.payload
            get_run_logger().info(
                "teacher number=%d documents=%d uri=%s version=%d",
                number,
                ref.num_documents,
                ref.uri,
                ref.version,
            )
    return job


@task(
    name="distillation-summary",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def summarize_distillation(job: TrainJob, checkpoint: CheckpointRef) -> None:
    """Held-out divergence and NLL before and after, the loss, the teachers, the address."""
    lines = distillation_lines(job, checkpoint)
    for line in lines:
        get_run_logger().info(line)
    text = "\n".join(lines)
    create_markdown_artifact(f"```\n{text}\n```", key="summary", description="what the run made")
