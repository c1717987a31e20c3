"""What a rank runs: `python -m megapack.engine.worker train|extract JOB --scratch DIR`.

Light on purpose: processes that a library spawns import this module again. Everything heavy is
imported inside, after what makes the import of megatron-core cheap on a CPU.
"""

import argparse
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from megapack.jobs.model import BackendName
from megapack.jobs.parallel import ParallelJob
from megapack.steps.launch.failures import reporting_failures
from megapack.steps.launch.protocol import RunFiles

if TYPE_CHECKING:
    from megapack.parallel.context import ParallelContext

# Ranks wait in a collective while others upload a checkpoint. A dead rank does not need this long:
# the agent notices it at once.
_COLLECTIVE_TIMEOUT_S = 1800.0

_logger = logging.getLogger("megapack.engine.worker")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run this rank's share of a job.

    Args:
        arguments: command line, that of the process by default.

    Raises:
        MegapackError: whatever the run raises; it is written to the rank's failure file first.
    """
    parser = argparse.ArgumentParser(prog="python -m megapack.engine.worker")
    parser.add_argument("kind", choices=("train", "extract"))
    parser.add_argument("job", type=Path)
    parser.add_argument("--scratch", type=Path, required=True)
    options = parser.parse_args(arguments)
    rank = int(os.environ.get("RANK", "0"))
    with reporting_failures(RunFiles(scratch=options.scratch), rank):
        _set_up_logging(rank)
        _work(options.kind, options.job, options.scratch)


def _work(kind: str, job_path: Path, scratch: Path) -> None:
    run = {"train": _train, "extract": _extract}[kind]
    run(job_path, scratch, time.perf_counter())


def _train(job_path: Path, scratch: Path, started: float) -> None:
    from megapack.jobs.train import TrainJob

    job = TrainJob.load(job_path)
    settings = job.settings
    with _world(settings.backend, settings.parallel, seed=settings.seed) as context:
        from megapack.engine.train import run_training

        _logger.info("rank ready kind=train seconds=%.1f", time.perf_counter() - started)
        progress = run_training(job, context, scratch)
        _logger.info(
            "training done step=%d consumed_rows=%d seconds=%.1f",
            progress.step,
            progress.consumed_rows,
            time.perf_counter() - started,
        )


def _extract(job_path: Path, scratch: Path, started: float) -> None:
    from megapack.jobs.extract import ExtractJob

    job = ExtractJob.load(job_path)
    with _world(job.settings.backend, job.settings.parallel, seed=0) as context:
        from megapack.engine.extract import run_extraction

        _logger.info("rank ready kind=extract seconds=%.1f", time.perf_counter() - started)
        documents = run_extraction(job, context, scratch)
        _logger.info(
            "extraction done documents=%d seconds=%.1f", documents, time.perf_counter() - started
        )


@contextmanager
def _world(
    backend: BackendName, parallel: ParallelJob, *, seed: int
) -> Iterator["ParallelContext"]:
    """This rank's context, with torch and megatron-core made ready for a backend."""
    from megapack.model.backend import engine_of, select_backend
    from megapack.parallel import runtime

    # Before megatron.core is imported: see megapack.parallel.patches.
    runtime.install_runtime(engine_of(select_backend(backend)))
    from megapack.parallel.context import ParallelContext

    runtime.start_process_group(timeout_s=_COLLECTIVE_TIMEOUT_S)
    try:
        yield ParallelContext.initialize(parallel.sizes(), seed=seed)
    finally:
        runtime.stop_process_group()


def _set_up_logging(rank: int) -> None:
    """One line an event; rank 0 says what goes well, the others only what does not."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO if rank == 0 else logging.WARNING,
        format="%(levelname)s %(name)s %(message)s",
    )
    # Upstream's notes on deprecations and missing accelerators are not for the run's log.
    warnings.filterwarnings("ignore", module=r"(megatron|torch)\b")
    warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor")
    # Seen from our frame, because it passes through our stand-in for the device.
    warnings.filterwarnings("ignore", message="Please use DTensor instead")
    for name in ("megatron", "torch", "torch.utils.cpp_extension"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("aiobotocore", "botocore"):
        logging.getLogger(name).setLevel(logging.WARNING)


if __name__ == "__main__":
    main()
