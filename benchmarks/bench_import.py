"""Cold import, in a child process each: what a user waits for before anything happens."""

import subprocess
import sys
import time

from benchmarks.record import emit

MODULES = (
    "megapack.jobs.prepare",
    "megapack.steps.pack",
    "megapack.cli.main",
    "flows.pack_and_train",
)


def main() -> None:
    """Print one line a module."""
    for module in MODULES:
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", f"import {module}"], check=False)
        emit(
            "import",
            module=module,
            wall_s=round(time.perf_counter() - begin, 2),
            ok=done.returncode == 0,
        )


if __name__ == "__main__":
    main()
