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

from megapack.engine.signals import STOPPED_EXIT_CODE, stop_requests
from megapack.errors import RankError, StoppedError
from megapack.steps.launch.failures import report_failure, reporting_failures
from megapack.steps.launch.protocol import RunFiles

# An extraction's ranks wait in a collective while one downloads a checkpoint.
_EXTRACTION_TIMEOUT_S = 1800.0

_logger = logging.getLogger("megapack.engine.worker")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run this rank's share of a job.

    Args:
        arguments: command line, that of the process by default.

    Raises:
        MegapackError: whatever the run raises; it is written to the rank's failure file first.
        SystemExit: with code 75 when the run was told to stop and has saved.
    """
    parser = argparse.ArgumentParser(prog="python -m megapack.engine.worker")
    parser.add_argument("kind", choices=("train", "extract"))
    parser.add_argument("job", type=Path)
    parser.add_argument("--scratch", type=Path, required=True)
    options = parser.parse_args(arguments)
    rank = int(os.environ.get("RANK", "0"))
    files = RunFiles(scratch=options.scratch)
    files.folder.mkdir(parents=True, exist_ok=True)
    try:
        with reporting_failures(files, rank):
            _set_up_logging(rank)
            if options.kind == "train":
                _train(options.job, options.scratch, rank)
            else:
                _extract(options.job, options.scratch)
    except StoppedError as stopped:
        _logger.warning("%s", stopped)
        raise SystemExit(STOPPED_EXIT_CODE) from None


@contextmanager
def _world(*, timeout_s: float) -> Iterator[None]:
    """This process in its world, with what megatron-core needs.

    Args:
        timeout_s: seconds after which a collective fails.
    """
    # torch and megatron-core, in this order: see prepare_import.
    import torch

    from megapack.parallel import runtime

    runtime.prepare_import()
    if not torch.cuda.is_available():
        runtime.install_cpu_runtime()
    runtime.start_process_group(timeout_s=timeout_s)
    try:
        yield
    finally:
        runtime.stop_process_group()


def _train(job_path: Path, scratch: Path, rank: int) -> None:
    from megapack.jobs.train import TrainJob

    started = time.perf_counter()
    job = TrainJob.load(job_path)
    settings = job.settings
    files = RunFiles(scratch=scratch)

    def end(reason: str) -> None:
        report_failure(files, rank, RankError(reason, rank=rank))
        os._exit(STOPPED_EXIT_CODE)

    with (
        stop_requests(within_s=settings.stop_within_s, end=end) as stop,
        _world(timeout_s=settings.collective_timeout_s),
    ):
        from megapack.engine.train import run_training
        from megapack.parallel.context import ParallelContext

        context = ParallelContext.initialize(settings.parallel.sizes(), seed=settings.seed)
        _logger.info("rank ready kind=train seconds=%.1f", time.perf_counter() - started)
        progress = run_training(job, context, scratch, stop=stop)
    _logger.info(
        "training done step=%d consumed_rows=%d seconds=%.1f",
        progress.step,
        progress.consumed_rows,
        time.perf_counter() - started,
    )


def _extract(job_path: Path, scratch: Path) -> None:
    from megapack.jobs.extract import ExtractJob

    started = time.perf_counter()
    job = ExtractJob.load(job_path)
    with _world(timeout_s=_EXTRACTION_TIMEOUT_S):
        from megapack.engine.extract import run_extraction
        from megapack.parallel.context import ParallelContext

        context = ParallelContext.initialize(job.settings.parallel.sizes(), seed=0)
        _logger.info("rank ready kind=extract seconds=%.1f", time.perf_counter() - started)
        documents = run_extraction(job, context, scratch)
    _logger.info(
        "extraction done documents=%d seconds=%.1f", documents, time.perf_counter() - started
    )


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
