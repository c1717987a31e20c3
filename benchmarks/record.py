"""One JSON line a measurement, with the machine and the commit it was taken on."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def cpu_seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """Least CPU time of this process over a few calls."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def emit(name: str, **values: str | float | bool) -> None:
    """Print a measurement."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    line = {
        "benchmark": name,
        **values,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "commit": commit,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
