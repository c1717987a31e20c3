"""Peak memory of work in a process of its own, whose high-water mark the kernel keeps."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

# glibc moves this threshold up as blocks are freed, and then keeps up to three chunks for later:
# noise of 50 MB. Fixed, a freed chunk goes back at once and peaks repeat to 1 MB.
_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


def peak_of(module: str, *arguments: str | int) -> dict[str, float]:
    """Run a benchmark's module with arguments; what its `tell_peak` said."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **_ENVIRONMENT},
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def tell_peak(work: Callable[[], Mapping[str, float] | None]) -> None:
    """In the child: do the work on one core, print the peak, the time and what the work gave."""
    import torch

    torch.set_num_threads(1)
    begin = time.process_time()
    more = work() or {}
    seconds = time.process_time() - begin
    # Not `ru_maxrss`: that one is handed down by the process that started this one.
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    found = {"peak_mb": round(peak, 1), "cpu_s": round(seconds, 1), **more}
    sys.stdout.write(json.dumps(found) + "\n")
