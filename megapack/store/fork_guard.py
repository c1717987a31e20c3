"""Refuse to read in a process that was forked from one in which polars was at work.

polars starts threads at its first work, and a fork has none of them: the child would wait for them
for ever. Workers of a data loader are forked by default on Linux; before the first read they may.
"""

import os
import re
from pathlib import Path

from megapack.errors import ConfigError

_THREADS = Path("/proc/self/task")
_WORKER = re.compile(r"polars-\d")


class _Forks:
    """What is known about this process and the one that it was forked from."""

    at_work = False
    lost = False


def check_can_read() -> None:
    """Refuse a process that would hang.

    Raises:
        ConfigError: it was forked from a process in which polars was at work.
    """
    if _Forks.lost:
        raise ConfigError(
            "expected to read rows in a process that was spawned, or forked before any row was "
            "read; found one forked from a process in which polars was at work, where reading "
            "would hang. Give the data loader multiprocessing_context='spawn', or start its "
            "workers before the main process reads a row."
        )


def _before_fork() -> None:
    _Forks.at_work = any(_WORKER.match(_name(path)) for path in _THREADS.glob("*/comm"))


def _name(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # the thread ended meanwhile


def _in_child() -> None:
    _Forks.lost = _Forks.lost or _Forks.at_work


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
