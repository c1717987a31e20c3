"""Task: packed rows to a trained checkpoint, with rank logs, live progress and the loss curve."""

from collections.abc import Mapping
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from megapack.jobs.train import TrainJob
from megapack.records.refs import CheckpointRef
from megapack.steps import train as step
from tasks.loss_curve import publish_loss_curve
from tasks.progress import Clock, LiveProgress
from tasks.retry import RETRIES, RETRY_DELAYS_S, reused_or_done, store_or_rank_failed

_LOG_EVERY_S = 10.0


@task(
    name="train",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def train_model(job: TrainJob) -> CheckpointRef:
    """Start the ranks, relay what they say, and return the checkpoint after the last step."""
    logger = get_run_logger()
    progress = LiveProgress(key="training-progress", description="starting ranks")
    metrics: list[Mapping[str, Any]] = []
    clock = Clock(interval_s=_LOG_EVERY_S)

    def on_metric(metric: Mapping[str, Any]) -> None:
        metrics.append(metric)
        text = f"step {metric['step']} of {job.settings.steps}"
        if metric.get("loss") is not None:
            text += f", {metric['kind']} loss {metric['loss']:.4f}"
        progress.show(metric["step"] / job.settings.steps, text)
        if metric["kind"] == "evaluation" or clock.due():
            logger.info("%s %s", metric["kind"], text)

    ref = step.train(
        job, on_line=lambda rank, line: logger.info("[rank %d] %s", rank, line), on_metric=on_metric
    )
    progress.show(1.0, f"checkpoint of step {ref.step}: {ref.uri} version {ref.version}")
    publish_loss_curve(metrics)
    return reused_or_done(ref)  # type: ignore[return-value]  # Prefect unwraps a returned state
