"""Task: a training request to settings, with the starting model read and named by content."""

from prefect import task
from prefect.logging import get_run_logger

from megapack.jobs.train import TrainRequest, TrainSettings
from megapack.steps.hugging_face.resolve import resolve
from tasks.retry import RETRIES, RETRY_DELAYS_S, store_or_rank_failed


@task(
    name="resolve-model",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def resolve_model(train: TrainRequest) -> TrainSettings:
    """Refuse a starting model that cannot be one; otherwise say which content is started from."""
    settings = resolve(train)
    start = settings.starting_weights
    if start is not None:
        get_run_logger().info("starting model uri=%s digest=%s", start.uri, start.digest)
    return settings
