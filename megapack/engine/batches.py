"""A training step's rows as the microbatches that the settings ask for."""

from megapack.batch.iterate import StepBatch, dense_step, step_batch
from megapack.engine.run import TrainRun
from megapack.layout.granularity import granularity
from megapack.store.step_stream import RankStep


def training_batch(run: TrainRun, planned: RankStep) -> StepBatch:
    """Collective over dp_group: the microbatches of a step, with the payloads of teachers.

    Args:
        run: its settings say the kind.
        planned: rows of the step.

    Raises:
        ConfigError: a document is over the dense token budget.
    """
    batch = _plain_batch(run, planned)
    return batch if run.payloads is None else run.payloads.of_step(batch, planned)


def _plain_batch(run: TrainRun, planned: RankStep) -> StepBatch:
    budget = run.settings.dense_token_budget
    if budget is not None:
        return dense_step(
            planned.rows,
            context=run.context,
            token_budget=budget,
            granularity=granularity(run.context.sizes),
        )
    return step_batch(
        planned.rows,
        context=run.context,
        row_length=run.source.row_length,
        granularity=run.source.granularity,
        rows_per_microbatch=run.settings.rows_per_microbatch,
    )
