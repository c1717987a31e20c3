"""One training step: gradients, judgement, update, metrics.

Between the gradients and the update stands one agreement of all ranks on what is wrong with the
step, so that either all apply it or none does.
"""

import logging
import math
import time
from dataclasses import dataclass
from typing import Any

from megapack.batch.iterate import StepBatch
from megapack.engine.batches import training_batch
from megapack.engine.blame import describe, find_suspects
from megapack.engine.guard import Fault, GuardError, Verdict
from megapack.engine.progress import Progress
from megapack.engine.run import TrainRun
from megapack.engine.schedule import SchedulePlan, ScheduleResult, run_schedule
from megapack.engine.throughput import memory_bytes
from megapack.engine.together import most
from megapack.errors import ContractError
from megapack.store.manifest import Split
from megapack.store.step_stream import RankStep

_logger = logging.getLogger(__name__)
_SHOWN_ROWS = 20
_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """How a step went.

    Attributes:
        kind: `train` or `skipped`.
        metrics: losses, norm and fault of the step.
    """

    kind: str
    metrics: dict[str, Any]


def train_step(run: TrainRun, progress: Progress, planned: RankStep) -> Progress:
    """Collective over the world: one optimizer update, written to the metrics file.

    A step without any target token, or one that the guard skips, changes nothing but the counters
    and the place in the schedule: the optimizer's momentum and weight decay are not applied.

    Args:
        run: the run; its state changes.
        progress: before the step.
        planned: rows of the step.

    Returns:
        Progress after it.

    Raises:
        GuardError: the guard ends the run; on all ranks alike, nothing was applied.
        ContractError: two ways of counting target tokens disagree.
    """
    started = time.perf_counter()
    batch = training_batch(run, planned)
    run.state.scheduler.step(1)
    epoch = run.source.epoch(progress.consumed_rows)
    if batch.normalizer.num_target_tokens == 0:
        _logger.warning("step without target tokens skipped step=%d", progress.step + 1)
        outcome = _Outcome(kind="skipped", metrics={"reason": "no_target"})
    else:
        where = _where(progress.step + 1, epoch, planned)
        outcome = _update(run, batch, planned, where=where)
    after = progress.after(rows=int(planned.plan.rows.size), skipped=outcome.kind == "skipped")
    num_tokens = batch.normalizer.num_tokens
    metric: dict[str, Any] = {
        "kind": outcome.kind,
        "step": after.step,
        "lr": float(run.state.optimizer.param_groups[0]["lr"]),
        "num_target_tokens": batch.normalizer.num_target_tokens,
        "num_real_tokens": batch.normalizer.num_real_tokens,
        "num_tokens": num_tokens,
        "padding_share": 1.0 - batch.normalizer.num_real_tokens / num_tokens,
        "consumed_rows": after.consumed_rows,
        "epoch": epoch,
        **outcome.metrics,
    }
    speed = _speed(run, batch, planned, seconds=time.perf_counter() - started)
    run.log.write(metric | speed | run.timer.compare())
    return after


def _update(run: TrainRun, batch: StepBatch, planned: RankStep, *, where: str) -> _Outcome:
    """Gradients, then the optimizer, unless the guard is against it."""
    run.zero_gradients()
    result = run_schedule(run.state.chunks, SchedulePlan(step=batch, head=run.head), run.context)
    loss = _mean_loss(result, batch, where=where)
    norm, of_draft = run.gradient_norm(), run.draft_gradient_norm()
    worst = norm if of_draft is None or math.isfinite(of_draft) else of_draft
    own = run.guard.find(loss, worst)
    waited = 0.0 if run.payloads is None else run.payloads.training.take_waited_s()
    agreed, memory, waited_us = most(
        [own, memory_bytes(run.context.device), int(waited * _US)], run.context.device
    )
    fault = Fault(agreed)
    verdict = run.guard.verdict(fault)
    if fault is not Fault.NONE:
        _report(run, planned, fault, f"{where}: {run.guard.describe(fault, loss, worst)}")
    further = {name: value for name, value in result.metrics.items() if name != "loss"}
    if of_draft is not None:
        further["draft_grad_norm"] = of_draft
    metrics: dict[str, Any] = {"memory_bytes": memory}
    if run.means:
        metrics["payload_wait_s"] = waited_us / _US
    if fault is Fault.NONE or fault is Fault.LOSS_SPIKE:
        metrics |= {"loss": loss, "grad_norm": norm, **further}
    if fault is not Fault.NONE:
        metrics["fault"] = fault.name.lower()
    if verdict is Verdict.SKIP:
        run.guard.skipped()
        return _Outcome(kind="skipped", metrics={"reason": fault.name.lower(), **metrics})
    run.state.optimizer.step()
    run.guard.applied(loss)
    return _Outcome(kind="train", metrics=metrics)


def _report(run: TrainRun, planned: RankStep, fault: Fault, text: str) -> None:
    """Collective over the world: say where a fault comes from; raise when it ends the run."""
    verdict = run.guard.verdict(fault)
    named = describe(find_suspects(run, planned, fault))
    if verdict is Verdict.STOP:
        raise GuardError(
            f"{text}. It comes from: {named}. Nothing was updated and the last checkpoint is "
            "untouched. Lower optimizer.lr or optimizer.clip_grad, look at these documents, or "
            "choose another policy in TrainSettings.guard."
        )
    done = {Verdict.SKIP: "skipped", Verdict.APPLY: "applied all the same"}[verdict]
    _logger.warning("%s. It comes from: %s. The step is %s.", text, named, done)


def _speed(
    run: TrainRun, batch: StepBatch, planned: RankStep, *, seconds: float
) -> dict[str, float | None]:
    """How fast the step was."""
    real = batch.normalizer.num_real_tokens
    world_size = run.context.sizes.world_size
    pairs = int(run.source.dataset.costs(Split.TRAIN)[planned.plan.rows].sum())
    flops_per_s = run.cost.step_flops(num_real_tokens=real, pairs=pairs) / seconds
    peak = run.peak_flops
    return {
        "step_s": seconds,
        "tokens_per_s": real / seconds,
        "tokens_per_s_per_rank": real / seconds / world_size,
        "flops_per_s": flops_per_s,
        "mfu": None if peak is None else flops_per_s / (peak * world_size),
    }


def _mean_loss(result: ScheduleResult, batch: StepBatch, *, where: str) -> float:
    counted = batch.normalizer.num_target_tokens
    if result.num_target_tokens != counted:
        raise ContractError(
            f"{where}: the loss counted {result.num_target_tokens} target tokens, the rows hold "
            f"{counted}."
        )
    return result.loss_sum / result.divisor


def _where(step: int, epoch: int, planned: RankStep) -> str:
    numbers = planned.plan.rows.tolist()
    shown = ", ".join(str(number) for number in numbers[:_SHOWN_ROWS])
    more = len(numbers) - _SHOWN_ROWS
    rows = f"{shown} and {more} more" if more > 0 else shown
    return f"step {step} (epoch {epoch}, rows {rows} of the training split)"
