"""polars hangs in a process forked after its first work. See polars_after_fork.md."""

import subprocess
import sys

_CODE = """
import os, signal, time, warnings
warnings.simplefilter("ignore")
import polars as pl
work = lambda: pl.DataFrame({"a": range(100_000)}).lazy().group_by("a").agg(pl.len()).collect()
work()
child = os.fork()
if child == 0:
    work()
    os._exit(0)
deadline = time.monotonic() + 15
while time.monotonic() < deadline:
    ended, _ = os.waitpid(child, os.WNOHANG)
    if ended:
        raise SystemExit(0)
    time.sleep(0.05)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
raise SystemExit(7)
"""
_HUNG = 7


def fault_is_present() -> bool:
    """Whether a forked child was still at 0.1 s of work after 15 s."""
    return subprocess.run([sys.executable, "-c", _CODE], check=False).returncode == _HUNG


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
