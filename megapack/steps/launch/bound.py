"""Run a command that cannot outlive its parent. Started by path, so it may import nothing of ours.

    python -I -S bound.py agent PARENT_PID -- command...
    python -I -S bound.py rank -- command...

Each rank leads a process session of its own (torchrun starts it so), which no signal to the
caller's group reaches. The kernel can do better: PR_SET_PDEATHSIG kills this process the moment
its parent ends, however it ends. The setting survives exec, so it costs one exec of a bare
interpreter (about 20 ms) and, unlike a function between fork and exec, it is safe in a process
with threads.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_AGENT_VARIABLE = "MEGAPACK_AGENT_PID"
_SCRATCH_VARIABLE = "MEGAPACK_RUN_SCRATCH"
_LOST_PARENT = 86


def bind_to_parent(parent: int) -> bool:
    """Have the kernel kill this process when its parent ends.

    Args:
        parent: process id that the parent must have.

    Returns:
        False when the parent has ended already, so that the caller must end by itself.

    Raises:
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    return os.getppid() == parent


def main(arguments: Sequence[str]) -> None:
    """Bind, redirect, exec. Ends this process when the parent is gone.

    Args:
        arguments: as in the module's docstring.
    """
    role, *before = arguments[: arguments.index("--")]
    command = list(arguments[arguments.index("--") + 1 :])
    parent = int(before[0]) if role == "agent" else int(os.environ[_AGENT_VARIABLE])
    if not bind_to_parent(parent):
        sys.exit(_LOST_PARENT)
    if role == "agent":
        os.environ[_AGENT_VARIABLE] = str(os.getpid())
    else:
        _write_to_own_file()
    os.execvp(command[0], command)


def _write_to_own_file() -> None:
    """Send stdout and stderr of this rank to its log, which stays when the rank is killed."""
    log = Path(os.environ[_SCRATCH_VARIABLE]) / "ranks" / f"rank-{int(os.environ['RANK']):05d}.log"
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)


if __name__ == "__main__":
    main(sys.argv[1:])
