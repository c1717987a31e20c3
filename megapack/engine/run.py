"""`TrainRun`: everything a step needs, built once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from megapack.engine.guard import Guard
from megapack.engine.learning import learn
from megapack.engine.metric_log import MetricLog
from megapack.engine.payload_join import PayloadJoin
from megapack.engine.rows import RowSource
from megapack.engine.sharded_state import TrainState
from megapack.engine.starting import start_from_folder
from megapack.engine.straggler import StepTimer, step_timer
from megapack.engine.throughput import ModelCost, device_peak_flops, model_cost
from megapack.jobs.addresses import train_address
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.model.build import build_model, wrap_ddp
from megapack.model.draft import attach_draft
from megapack.model.optimizer import build_optimizer, build_scheduler
from megapack.outputs.head import OutputHead
from megapack.parallel.context import ParallelContext
from megapack.steps.launch.protocol import RunFiles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainRun:
    """Everything a step needs.

    Attributes:
        settings: the job's settings.
        source: rows of the dataset.
        state: model, optimizer, schedule.
        head: the loss.
        guard: judges steps before they are applied.
        log: metrics file.
        timer: tells which rank is slow, when the job asks for it.
        cost: what tokens cost, for throughput.
        peak_flops: of one device, operations a second; None when not known.
        payloads: what rows are joined with; None without teachers, and on ranks that need none.
        means: metrics of the loss that evaluations report besides.
    """

    settings: TrainSettings
    source: RowSource
    state: TrainState
    head: OutputHead
    guard: Guard
    log: MetricLog
    timer: StepTimer
    cost: ModelCost
    peak_flops: float | None
    payloads: PayloadJoin | None = None
    means: tuple[str, ...] = ()

    @property
    def context(self) -> ParallelContext:
        """This rank."""
        return self.state.context

    @property
    def bare_chunks(self) -> Sequence[Any]:
        """Model chunks without their DDP wrappers."""
        return [chunk.module for chunk in self.state.chunks]

    def close(self) -> None:
        """End background reads and let the dataset go."""
        if self.payloads is not None:
            self.payloads.close()
        self.source.close()

    def zero_gradients(self) -> None:
        """Begin a step's gradients."""
        for chunk in self.state.chunks:
            chunk.zero_grad_buffer()
        self.state.optimizer.zero_grad()

    def gradient_norm(self) -> float:
        """Collective over the world: norm of the whole gradient as it is, before clipping."""
        optimizer = self.state.optimizer
        optimizer.prepare_grads()
        return float(optimizer.get_grad_norm())


def build_run(job: TrainJob, context: ParallelContext, scratch: Path) -> TrainRun:
    """Collective over the world: data, model, optimizer and schedule of a fresh run.

    Args:
        job: what to train.
        context: an initialised context of the job's sizes.
        scratch: node-local folder of the run.
    """
    settings = job.settings
    name = f"train-{train_address(job)[:16]}" if dist.get_rank() == 0 else None
    source = RowSource.open(job.dataset, run=name)
    bare = build_model(
        settings.model,
        context=context,
        vocab_size=settings.model.vocabulary(source.vocab_size),
        backend=settings.backend,
        seed=settings.seed if settings.starting_weights is None else None,
    )
    start_from_folder(job, bare, context)
    draft = settings.draft
    if draft is not None:
        attach_draft(bare, draft, model=settings.model, context=context, seed=settings.seed)
    chunks = wrap_ddp(bare, context=context, distributed_optimizer=settings.optimizer.distributed)
    optimizer = build_optimizer(
        chunks,
        settings.optimizer,
        context=context,
        draft_lr=None if draft is None else draft.lr,
    )
    scheduler = build_scheduler(optimizer, settings.optimizer, total_steps=settings.steps)
    timer = step_timer(settings.straggler_timing, context.device)
    timer.attach(chunks)
    metrics = RunFiles(scratch=scratch).metrics if dist.get_rank() == 0 else None
    learning = learn(job, source, context, scratch)
    return TrainRun(
        settings=settings,
        source=source,
        state=TrainState(chunks=chunks, optimizer=optimizer, scheduler=scheduler, context=context),
        head=learning.head,
        guard=Guard(settings.guard),
        log=MetricLog(metrics),
        timer=timer,
        cost=model_cost([chunk.module for chunk in chunks], context),
        peak_flops=device_peak_flops(context.device, settings.model.precision),
        payloads=learning.payloads,
        means=learning.means,
    )
