"""Ending a process tree for certain: ask, wait a bounded time, kill, wait until all are gone.

Processes are held by pidfd, so that a process id that the kernel gave to somebody else in the
meantime is never signalled. Linux only.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

GRACE_S = 5.0
"""Seconds between the request to end and the kill, for ranks that save nothing when asked."""

_KILL_WAIT_S = 5.0


def descendants(pid: int) -> tuple[int, ...]:
    """Process ids of all living children of a process, and of theirs, parents first."""
    family = _families()
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in family.get(parent, ())]
        found.extend(level)
    return tuple(found)


def children(pid: int) -> tuple[int, ...]:
    """Process ids of the living children of a process."""
    return tuple(_families().get(pid, ()))


def stop_tree(agent: subprocess.Popen[bytes], *, grace_s: float = GRACE_S) -> None:
    """End the agent and everything below it; on return none of them runs.

    The ranks are asked, not the agent: a terminal or a scheduler may have told the agent already,
    and torchrun that is told twice leaves without its ranks. When all ranks end, it ends.

    Args:
        agent: the process at the top, a child of this process.
        grace_s: seconds the tree may take to end by itself after SIGTERM.
    """
    if agent.poll() is not None:
        return
    with _held(descendants(agent.pid)) as ranks, _held(children(agent.pid)) as direct:
        try:
            _send(direct, signal.SIGTERM)
            if not direct:
                agent.terminate()
            _wait(agent, grace_s)
        finally:
            # Also when a second interrupt arrives during the wait.
            with _held(descendants(agent.pid)) as late:
                agent.kill()
                _kill((*ranks, *late))
            agent.wait()


def _families() -> dict[int, list[int]]:
    """Living children of every process that has any."""
    family: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (parent := _parent(entry)) is not None:
            family.setdefault(parent, []).append(int(entry.name))
    return family


def _send(pidfds: tuple[int, ...], number: signal.Signals) -> None:
    for pidfd in pidfds:
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            continue


def _kill(pidfds: tuple[int, ...]) -> None:
    _send(pidfds, signal.SIGKILL)
    deadline = time.monotonic() + _KILL_WAIT_S
    for pidfd in pidfds:
        # A pidfd becomes readable when its process has ended.
        select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))


def _wait(agent: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        agent.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return


@contextmanager
def _held(pids: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Open pidfds of the processes that still exist."""
    with ExitStack() as stack:
        pidfds = []
        for pid in pids:
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            stack.callback(os.close, pidfd)
            pidfds.append(pidfd)
        yield tuple(pidfds)


def _parent(entry: Path) -> int | None:
    """Parent's process id from /proc/PID/stat, None when the process is gone or a zombie."""
    try:
        stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold spaces and parentheses itself.
    state, parent, *_ = stat[stat.rindex(")") + 1 :].split()
    return None if state == "Z" else int(parent)
