"""One training run: steps, evaluations, checkpoints; from the newest checkpoint to the last step.

A step is a function of (job, step number, state): its rows follow from the seed and the number,
its learning rate from the number. So a run that continues from a checkpoint takes the same steps
as one that was never stopped.
"""

import logging
from pathlib import Path

from megapack.engine.checkpoint import CheckpointStore
from megapack.engine.evaluate import EvaluationPlan, evaluate
from megapack.engine.guard import GuardError
from megapack.engine.progress import Moment, Progress
from megapack.engine.run import TrainRun, build_run
from megapack.engine.saver import Saver
from megapack.engine.signals import StopRequest
from megapack.engine.step import train_step
from megapack.engine.together import most
from megapack.errors import StoppedError
from megapack.jobs.train import TrainJob
from megapack.parallel.context import ParallelContext

_logger = logging.getLogger(__name__)


def run_training(
    job: TrainJob, context: ParallelContext, scratch: Path, *, stop: StopRequest | None = None
) -> Progress:
    """Collective over the world: train to the last step, from the newest checkpoint of this job.

    Args:
        job: what to train.
        context: an initialised context of the job's sizes.
        scratch: node-local folder of the run.
        stop: whether this process was told to stop; None for one that nobody tells.

    Returns:
        Progress at the end. Its checkpoint is committed.

    Raises:
        DataError: a loss or a gradient is not finite.
        StoreError: the store failed.
        StoppedError: a rank was told to stop; the checkpoint of that moment is committed.
    """
    run = build_run(job, context, scratch)
    try:
        return _Loop(run, job, scratch, stop).to_the_end()
    finally:
        run.close()


class _Loop:
    """Steps, evaluations and saves of one process. Every method is collective over the world."""

    def __init__(
        self, run: TrainRun, job: TrainJob, scratch: Path, stop: StopRequest | None
    ) -> None:
        self._run = run
        self._settings = job.settings
        self._stop = stop
        self._store = CheckpointStore(
            job=job, info=run.source.dataset.info, folder=scratch / "checkpoints"
        )
        self._saver = Saver(self._store, run.log, run.context.device)

    def to_the_end(self) -> Progress:
        """Take the steps that are left."""
        progress = self._begin()
        rows = self._run.source.steps(
            seed=self._settings.seed,
            global_batch_rows=self._settings.global_batch_rows,
            consumed_rows=progress.consumed_rows,
            context=self._run.context,
        )
        steps = self._run.timer.reading(
            rows if self._run.payloads is None else self._run.payloads.ahead(rows)
        )
        loss: float | None = None
        while progress.step < self._settings.steps:
            self._saver.look()
            self._leave_if_told(progress, loss)
            try:
                progress = train_step(self._run, progress, next(steps))
            except GuardError:
                # All ranks are here: what is on its way is a good checkpoint to go on from.
                self._saver.finish()
                raise
            loss = self._evaluate_if_due(progress)
            self._save_if_due(progress, loss)
        self._saver.finish()
        return progress

    def _begin(self) -> Progress:
        """Progress of the newest checkpoint; an evaluation before the first step otherwise."""
        resumed = self._store.resume(self._run.state, self._run.log)
        if resumed is None:
            write_evaluation(self._run, Progress())
            return Progress()
        self._run.guard.state = resumed.guard
        self._saver.saved_step = resumed.progress.step
        return resumed.progress

    def _evaluate_if_due(self, progress: Progress) -> float | None:
        last = progress.step == self._settings.steps
        if last or progress.step % self._settings.evaluate_every == 0:
            return write_evaluation(self._run, progress)
        return None

    def _save_if_due(self, progress: Progress, loss: float | None) -> None:
        last = progress.step == self._settings.steps
        if last or progress.step % self._settings.checkpoint_every == 0:
            self._save(progress, loss)

    def _save(self, progress: Progress, loss: float | None) -> None:
        moment = Moment(progress=progress, guard=self._run.guard.state, validation_loss=loss)
        self._saver.save(self._run.state, moment)

    def _leave_if_told(self, progress: Progress, loss: float | None) -> None:
        """End the run when any rank was told to, with everything saved."""
        asked = self._stop is not None and self._stop.asked
        if not any(most([asked], self._run.context.device)):
            return
        if progress.step and self._saver.saved_step != progress.step:
            self._save(progress, loss)
        self._saver.finish()
        total = self._settings.steps
        saved = (
            f"step {progress.step} of {total} is saved" if progress.step else "no step was taken"
        )
        raise StoppedError(f"told to stop: {saved}. Run the same job again to go on from there.")


def write_evaluation(run: TrainRun, progress: Progress) -> float | None:
    """Collective over the world: evaluate, and write the result to the metrics file.

    Returns:
        The loss, None without validation rows or targets in them.
    """
    plan = EvaluationPlan(
        head=run.head,
        max_rows=run.settings.evaluation_rows,
        rows_per_microbatch=run.settings.rows_per_microbatch,
        payloads=run.payloads,
        means=run.means,
    )
    result = evaluate(run.bare_chunks, run.source, run.context, plan)
    if result is None:
        return None
    run.log.write(
        {
            "kind": "evaluation",
            "step": progress.step,
            "loss": result.loss,
            **result.metrics,
            "num_target_tokens": result.num_target_tokens,
            "num_rows": result.num_rows,
        }
    )
    return result.loss
