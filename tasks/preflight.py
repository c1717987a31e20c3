"""Task: everything that can be refused before work starts."""

from prefect import task
from prefect.logging import get_run_logger

from megapack.jobs.extract import ExtractSettings
from megapack.jobs.prepare import PrepareJob
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.steps.extraction.checks import check_size
from megapack.steps.preflight import check_prepare, check_training
from megapack.steps.tables import committed
from tasks.retry import RETRIES, RETRY_DELAYS_S, store_or_rank_failed


@task(
    name="preflight",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def preflight(
    prepare: PrepareJob, train: TrainSettings | None = None, extract: ExtractSettings | None = None
) -> None:
    """Refuse a wrong job, an unreachable store, a missing source or tokenizer, with one line."""
    logger = get_run_logger()
    for line in check_prepare(prepare):
        logger.info(line)
    if train is not None:
        for line in check_training(prepare, train, extract):
            logger.info(line)


@task(
    name="preflight-payload",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAYS_S,
    retry_condition_fn=store_or_rank_failed,
)
def preflight_payload(training: TrainJob, extract: ExtractSettings) -> None:
    """Refuse, once the rows are known and before training, payloads that are over their limit."""
    check_size(committed(training.dataset), training.settings.model, extract)
    get_run_logger().info("preflight payload within_limit=yes")
