"""One training run: rows to microbatches, steps, evaluations and checkpoints.

A step is a function of (job, step number, state): its rows follow from the seed and the number,
its learning rate from the number. So a run that continues from a checkpoint takes the same steps
as one that was never stopped.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from megapack.batch.iterate import StepBatch, step_batch
from megapack.engine.checkpoint import CheckpointStore, Progress
from megapack.engine.evaluate import evaluate
from megapack.engine.metric_log import MetricLog
from megapack.engine.rows import RowSource
from megapack.engine.schedule import SchedulePlan, ScheduleResult, run_schedule
from megapack.engine.sharded_state import TrainState
from megapack.engine.straggler import StepTimer, step_timer
from megapack.errors import ContractError, DataError
from megapack.jobs.addresses import train_address
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.model.build import build_model, wrap_ddp
from megapack.model.optimizer import build_optimizer, build_scheduler
from megapack.outputs.loss import TokenLossHead
from megapack.parallel.context import ParallelContext
from megapack.steps.launch.protocol import RunFiles
from megapack.store.step_stream import RankStep

_logger = logging.getLogger(__name__)
_SHOWN_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainRun:
    """Everything a step needs.

    Attributes:
        settings: the job's settings.
        source: rows of the dataset.
        state: model, optimizer, schedule.
        log: metrics file.
        timer: tells which rank is slow, when the job asks for it.
    """

    settings: TrainSettings
    source: RowSource
    state: TrainState
    log: MetricLog
    timer: StepTimer

    @property
    def context(self) -> ParallelContext:
        """This rank."""
        return self.state.context

    @property
    def bare_chunks(self) -> Sequence[Any]:
        """Model chunks without their DDP wrappers."""
        return [chunk.module for chunk in self.state.chunks]


def run_training(job: TrainJob, context: ParallelContext, scratch: Path) -> Progress:
    """Collective over the world: train to the last step, from the newest checkpoint of this job.

    Args:
        job: what to train.
        context: an initialised context of the job's sizes.
        scratch: node-local folder of the run.

    Returns:
        Progress at the end. Its checkpoint is committed.

    Raises:
        DataError: a loss or a gradient is not finite.
        StoreError: the store failed.
    """
    run = build_run(job, context, scratch)
    try:
        return _take_steps(run, job, scratch)
    finally:
        run.source.close()


def _take_steps(run: TrainRun, job: TrainJob, scratch: Path) -> Progress:
    """Collective over the world: the steps that are left, with evaluations and checkpoints."""
    checkpoints = CheckpointStore(
        job=job, info=run.source.dataset.info, folder=scratch / "checkpoints"
    )
    progress = checkpoints.resume(run.state, run.log)
    if progress is None:
        progress = Progress()
        write_evaluation(run, progress)
    steps = run.timer.reading(
        run.source.steps(
            seed=job.settings.seed,
            global_batch_rows=job.settings.global_batch_rows,
            consumed_rows=progress.consumed_rows,
            context=run.context,
        )
    )
    while progress.step < job.settings.steps:
        progress = train_step(run, progress, next(steps))
        last = progress.step == job.settings.steps
        if last or progress.step % job.settings.evaluate_every == 0:
            write_evaluation(run, progress)
        if last or progress.step % job.settings.checkpoint_every == 0:
            checkpoints.save(run.state, progress, run.log)
    return progress


def build_run(job: TrainJob, context: ParallelContext, scratch: Path) -> TrainRun:
    """Collective over the world: data, model, optimizer and schedule of a fresh run."""
    settings = job.settings
    name = f"train-{train_address(job)[:16]}" if dist.get_rank() == 0 else None
    source = RowSource.open(job.dataset, run=name)
    chunks = wrap_ddp(
        build_model(
            settings.model,
            context=context,
            vocab_size=source.vocab_size,
            backend=settings.backend,
            seed=settings.seed,
        ),
        context=context,
        distributed_optimizer=settings.optimizer.distributed,
    )
    optimizer = build_optimizer(chunks, settings.optimizer, context=context)
    scheduler = build_scheduler(optimizer, settings.optimizer, total_steps=settings.steps)
    timer = step_timer(settings.straggler_timing, context.device)
    timer.attach(chunks)
    metrics = RunFiles(scratch=scratch).metrics if dist.get_rank() == 0 else None
    return TrainRun(
        settings=settings,
        source=source,
        state=TrainState(chunks=chunks, optimizer=optimizer, scheduler=scheduler, context=context),
        log=MetricLog(metrics),
        timer=timer,
    )


def train_step(run: TrainRun, progress: Progress, planned: RankStep) -> Progress:
    """Collective over the world: one optimizer update, written to the metrics file.

    A step without any target token changes nothing but the counters: it has no gradient, and
    the optimizer's momentum and weight decay are not applied either.

    Args:
        run: the run; its state changes.
        progress: before the step.
        planned: rows of the step.

    Returns:
        Progress after it.

    Raises:
        DataError: the loss or the gradient norm is not finite.
        ContractError: two ways of counting target tokens disagree.
    """
    started = time.perf_counter()
    batch = step_batch(
        planned.rows,
        context=run.context,
        row_length=run.source.row_length,
        granularity=run.source.granularity,
    )
    run.state.scheduler.step(1)
    epoch = run.source.epoch(progress.consumed_rows)
    empty = batch.normalizer.num_target_tokens == 0
    after = progress.after(rows=int(planned.plan.rows.size), skipped=empty)
    metric: dict[str, Any] = {
        "kind": "skipped" if empty else "train",
        "step": after.step,
        "lr": float(run.state.optimizer.param_groups[0]["lr"]),
        "num_target_tokens": batch.normalizer.num_target_tokens,
        "num_real_tokens": batch.normalizer.num_real_tokens,
        "num_tokens": batch.num_microbatches * batch.row_length * run.context.sizes.dp,
        "consumed_rows": after.consumed_rows,
        "epoch": epoch,
    }
    if empty:
        _logger.warning("step without target tokens skipped step=%d", after.step)
    else:
        metric |= _update(run, batch, where=_where(after.step, epoch, planned))
    seconds = time.perf_counter() - started
    metric |= {"step_s": seconds, "tokens_per_s": metric["num_real_tokens"] / seconds}
    run.log.write(metric | run.timer.compare())
    return after


def write_evaluation(run: TrainRun, progress: Progress) -> None:
    """Collective over the world: evaluate, and write the result to the metrics file."""
    result = evaluate(
        run.bare_chunks, run.source, run.context, max_rows=run.settings.evaluation_rows
    )
    if result is None:
        return
    run.log.write(
        {
            "kind": "evaluation",
            "step": progress.step,
            "loss": result.loss,
            "num_target_tokens": result.num_target_tokens,
            "num_rows": result.num_rows,
        }
    )


def _update(run: TrainRun, batch: StepBatch, *, where: str) -> dict[str, float | None]:
    """Gradients, then the optimizer; loss and gradient norm (None when nothing is clipped)."""
    for chunk in run.state.chunks:
        chunk.zero_grad_buffer()
    run.state.optimizer.zero_grad()
    plan = SchedulePlan(step=batch, head=TokenLossHead())
    result = run_schedule(run.state.chunks, plan, run.context)
    loss = _checked_loss(result, batch, where=where)
    _, norm, _ = run.state.optimizer.step()
    if not run.settings.optimizer.clip_grad:
        # megatron-core computes the norm for clipping only.
        return {"loss": loss, "grad_norm": None}
    grad_norm = float(norm)
    if not math.isfinite(grad_norm):
        raise DataError(
            f"{where}: expected a finite gradient norm, found {grad_norm} at loss {loss}. The last "
            "checkpoint is untouched. Lower optimizer.lr or optimizer.clip_grad, or look at these "
            "rows."
        )
    return {"loss": loss, "grad_norm": grad_norm}


def _checked_loss(result: ScheduleResult, batch: StepBatch, *, where: str) -> float:
    counted = batch.normalizer.num_target_tokens
    if result.num_target_tokens != counted:
        raise ContractError(
            f"{where}: the loss counted {result.num_target_tokens} target tokens, the rows hold "
            f"{counted}."
        )
    loss = result.loss_sum / counted
    if not math.isfinite(loss):
        raise DataError(
            f"{where}: expected a finite loss, found {loss}. Nothing was updated and the last "
            "checkpoint is untouched. Lower optimizer.lr, or look at these rows."
        )
    return loss


def _where(step: int, epoch: int, planned: RankStep) -> str:
    numbers = planned.plan.rows.tolist()
    shown = ", ".join(str(number) for number in numbers[:_SHOWN_ROWS])
    more = len(numbers) - _SHOWN_ROWS
    rows = f"{shown} and {more} more" if more > 0 else shown
    return f"step {step} (epoch {epoch}, rows {rows} of the training split)"
