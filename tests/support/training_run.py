"""A whole training run on a rank, with faults at chosen moments; no torch at import.

`train_on_rank` runs on every rank of a world; moments are given in steps: 2.4 is in the third
step, after its gradients and before its update.
"""

import os
import signal
from pathlib import Path
from typing import Any

from megapack.jobs.train import TrainJob
from megapack.steps.launch.protocol import RunFiles

BEFORE_UPDATE, AFTER_UPDATE = 1 / 3, 2 / 3


def train_on_rank(
    job: str,
    scratch: str,
    moment: float | None = None,
    number: int = signal.SIGKILL,
    at_rank: int = 0,
):
    """Train; at a moment a rank signals itself. Rank 0 answers with all metric objects.

    Args:
        job: as JSON.
        scratch: folder of the run.
        moment: in steps; None for a run that nobody interrupts.
        number: signal.
        at_rank: rank that gets it.
    """
    import torch.distributed as dist

    from megapack.engine.metric_log import MetricLog
    from megapack.engine.signals import stop_requests
    from megapack.engine.train import run_training
    from megapack.parallel.context import ParallelContext

    parsed = TrainJob.model_validate_json(job)
    files = RunFiles(scratch=Path(scratch))
    files.folder.mkdir(parents=True, exist_ok=True)
    if moment is not None and dist.get_rank() == at_rank:
        signal_itself(moment, number)
    context = ParallelContext.initialize(
        parsed.settings.parallel.sizes(), seed=parsed.settings.seed
    )
    with stop_requests(within_s=30.0, end=lambda reason: os._exit(3)) as stop:
        run_training(parsed, context, files.scratch, stop=stop)
    return MetricLog.load(files.metrics) if dist.get_rank() == 0 else None


def signal_itself(moment: float, number: int) -> None:
    """Have this process signal itself at a moment of its run."""
    from megapack.engine import run as run_module
    from megapack.engine import train as train_module

    step, place = int(moment), moment % 1.0
    ordinary = train_module.train_step
    norm = run_module.TrainRun.gradient_norm
    now: dict[str, Any] = {"step": -1}

    def shoot() -> None:
        os.kill(os.getpid(), number)

    def train_step(run, progress, planned):
        now["step"] = progress.step
        if progress.step == step and place < BEFORE_UPDATE:
            shoot()
        after = ordinary(run, progress, planned)
        if progress.step == step and place >= AFTER_UPDATE:
            shoot()
        return after

    def gradient_norm(run):
        if now["step"] == step and BEFORE_UPDATE <= place < AFTER_UPDATE:
            shoot()
        return norm(run)

    train_module.train_step = train_step
    run_module.TrainRun.gradient_norm = gradient_norm


def curve(metrics, kind="train", name="loss"):
    """A value of a kind of metric objects, by step."""
    return {metric["step"]: metric[name] for metric in metrics if metric["kind"] == kind}
