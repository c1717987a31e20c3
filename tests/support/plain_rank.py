"""A rank without torch that does what its first argument says."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from megapack.errors import ConfigError, DataError, StoppedError
from megapack.steps.launch.failures import reporting_failures
from megapack.steps.launch.protocol import SCRATCH_VARIABLE, RunFiles

RANK = int(os.environ["RANK"])
FILES = RunFiles(scratch=Path(os.environ[SCRATCH_VARIABLE]))


def succeed() -> None:
    sys.stdout.write(f"rank {RANK} says one\nrank {RANK} says two without an end")
    if RANK == 0:
        with FILES.metrics.open("a", encoding="utf-8") as metrics:
            for step in (1, 2):
                metrics.write(json.dumps({"step": step, "loss": 1.5 / step}) + "\n")


def slow_metric() -> None:
    if RANK == 0:
        with FILES.metrics.open("a", encoding="utf-8") as metrics:
            metrics.write('{"step": 1}\n')
    wait_for("seen")


def config_error() -> None:
    if RANK == 1:
        raise ConfigError("row_length = 7, expected a multiple of 4. Use 8.")
    time.sleep(60)


def data_error_after_peer() -> None:
    if RANK == 0:
        wait_for("deaf")
        raise RuntimeError("connection closed by peer")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (FILES.scratch / "deaf").touch()
    while not FILES.failure(0).exists():
        time.sleep(0.01)
    raise DataError("document 3f: no tokens")


def crash() -> None:
    if RANK == 1:
        for number in range(60):
            sys.stdout.write(f"line {number}\n")
        raise ValueError("broken")
    time.sleep(60)


def killed_with_peer() -> None:
    if RANK == 1:
        (FILES.scratch / "victim").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for("victim")
    raise RuntimeError("connection closed by peer")


def wait_for(name: str) -> None:
    while not (FILES.scratch / name).exists():
        time.sleep(0.01)


def wait() -> None:
    (FILES.folder / f"pid-{RANK}").write_text(f"{os.getpid()} {os.getppid()}")
    time.sleep(60)


def save_when_told() -> None:
    from megapack.engine.signals import stop_requests

    with stop_requests(within_s=8.0, end=lambda _: os._exit(3)) as request:
        (FILES.folder / f"pid-{RANK}").write_text(f"{os.getpid()} {os.getppid()}")
        while not request.asked:
            time.sleep(0.01)
        time.sleep(0.5)
        (FILES.scratch / f"saved-{RANK}").touch()
    raise StoppedError("told to stop: step 3 of 9 is saved.")


def wait_deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait()


if __name__ == "__main__":
    with reporting_failures(FILES, RANK):
        globals()[sys.argv[1]]()
