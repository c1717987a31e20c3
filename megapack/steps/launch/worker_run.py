"""One run of the worker module under a launcher: its job file, its scratch folder, its end."""

import shutil
import tempfile
from pathlib import Path

from megapack.jobs.base import Job
from megapack.steps.launch.protocol import Launcher, OnLine, OnMetric, RankCommand

WORKER_MODULE = "megapack.engine.worker"


def run_worker(  # noqa: PLR0913 - a launcher's callbacks beside what to run
    kind: str,
    job: Job,
    *,
    num_ranks: int,
    launcher: Launcher,
    scratch: Path | None,
    on_line: OnLine,
    on_metric: OnMetric,
    stop_within_s: float | None = None,
) -> None:
    """Run a job to its end. Raises whatever the launcher raises.

    Args:
        kind: `train` or `extract`.
        job: what the ranks read.
        num_ranks: ranks to start.
        launcher: starts them.
        scratch: node-local folder for the run's files, a temporary one when None. A temporary
            folder is removed after success; after a failure its logs stay for the reader of the
            error, and what is large goes.
        on_line: takes log lines.
        on_metric: takes metrics.
        stop_within_s: seconds in which ranks that are told to stop have saved and ended.
    """
    folder = Path(tempfile.mkdtemp(prefix="megapack-run-")) if scratch is None else scratch
    folder.mkdir(parents=True, exist_ok=True)
    job_path = folder / "job.json"
    job.save(job_path)
    command = RankCommand(
        module=WORKER_MODULE,
        arguments=(kind, str(job_path), "--scratch", str(folder)),
        num_ranks=num_ranks,
        scratch=folder,
        stop_within_s=stop_within_s,
    )
    try:
        launcher(command, on_line=on_line, on_metric=on_metric)
    finally:
        for large in ("checkpoints", "teacher"):
            shutil.rmtree(folder / large, ignore_errors=True)
    if scratch is None:
        shutil.rmtree(folder, ignore_errors=True)
