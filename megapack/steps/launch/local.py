"""The local launcher: torchrun on this machine, as one process tree that nothing outlives.

The tree stays in the caller's process group, so that what stops the caller (Ctrl-C, Prefect's
cancel) stops the agent too; each process in it asks the kernel to be killed with its parent; and
whatever leaves `run_ranks` other than success ends the tree first, ranks that save when they are
told to stop being given the time for it. It works the same in the main thread and in a worker
thread: no reader threads, callbacks in the caller's thread. One signal handler: where SIGTERM would
end the caller at once, and with it ranks that could have saved, it leaves `run_ranks` instead.
"""

import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import megapack
from megapack.errors import ConfigError, RankError
from megapack.steps.launch.failures import failure_of
from megapack.steps.launch.process_tree import GRACE_S, stop_tree
from megapack.steps.launch.protocol import (
    AGENT_RANK,
    SCRATCH_VARIABLE,
    OnLine,
    OnMetric,
    RankCommand,
    RunFiles,
)
from megapack.steps.launch.tail import Relay

_logger = logging.getLogger(__name__)
_POLL_S = 0.1
_BOUND = Path(__file__).with_name("bound.py")
_GPU_DEVICE = Path("/dev/nvidiactl")


def run_ranks(command: RankCommand, *, on_line: OnLine, on_metric: OnMetric) -> None:
    """Start the ranks of a run on this machine and wait for their end.

    Args:
        command: what to start.
        on_line: called in this thread with (rank, line) as lines appear; rank -1 is the agent.
        on_metric: called in this thread with each object of the metrics file as it appears.

    Raises:
        ConfigError: this machine is not Linux or `num_ranks` < 1; or raised in a rank.
        DataError, StoreError, ContractError: raised in a rank.
        StoppedError: the ranks were told to stop, have saved, and the same job goes on from there.
        RankError: a rank or the agent died, or the run took longer than `timeout_s`.
    """
    _check(command)
    files = RunFiles(scratch=command.scratch)
    shutil.rmtree(files.folder, ignore_errors=True)
    files.folder.mkdir(parents=True)
    relay = Relay(files, command.num_ranks, on_line=on_line, on_metric=on_metric)
    with _leaving_on_sigterm(command):
        exit_code = _run_agent(command, files, relay)
    relay.pump(last="flush")
    if exit_code != 0:
        raise failure_of(files, exit_code=exit_code, relay=relay)


def rank_environment(command: RankCommand) -> dict[str, str]:
    """Environment of the tree: ours, what a rank needs, and what the command asks for.

    Compiled bytecode is wanted even where PYTHONDONTWRITEBYTECODE is set: without it every start
    compiles torch and megatron-core afresh (15 s). On a machine without a GPU the ranks share the
    cores, so each gets one thread.
    """
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONUNBUFFERED"] = "1"
    environment[SCRATCH_VARIABLE] = str(command.scratch.resolve())
    environment["PYTHONPATH"] = os.pathsep.join(_import_paths(environment))
    # gloo binds to the address of the host name, which need not resolve in a container.
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if not _GPU_DEVICE.exists():
        environment["OMP_NUM_THREADS"] = "1"
    # How long torchrun waits for ranks after it was told to stop.
    environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(math.ceil(_grace_s(command)))
    environment.update(command.environment)
    return environment


class _Told(BaseException):
    """SIGTERM arrived; raised in the main thread wherever it stands."""


@contextmanager
def _leaving_on_sigterm(command: RankCommand) -> Iterator[None]:
    """Inside, SIGTERM lets ranks save instead of ending this process, if nobody else handles it."""
    if (
        command.stop_within_s is None
        or threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, _tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _tell(*_: object) -> None:
    # A second request must not cut short the time that the first one gave.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Told


def _check(command: RankCommand) -> None:
    if sys.platform != "linux":
        raise ConfigError(
            f"the local launcher needs Linux (it binds ranks to their parent with prctl); this is "
            f"{sys.platform}. Run training in the container image."
        )
    if command.num_ranks < 1:
        raise ConfigError(
            f"RankCommand.num_ranks = {command.num_ranks}, expected at least 1. Check the "
            "parallel sizes of the job."
        )


def _run_agent(command: RankCommand, files: RunFiles, relay: Relay) -> int:
    """Run the agent to its end; return its exit code. The tree has ended whatever happens."""
    deadline = None if command.timeout_s is None else time.monotonic() + command.timeout_s
    with files.log(AGENT_RANK).open("ab") as log:
        agent = subprocess.Popen(
            agent_command_line(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=rank_environment(command),
        )
    try:
        while _is_running(agent):
            relay.pump()
            if deadline is not None and time.monotonic() > deadline:
                raise RankError(
                    f"expected the run to end within {command.timeout_s} s; it was stopped. "
                    f"Raise the limit, or see {files.folder} for where it hangs.",
                    tail=relay.tail(0),
                )
    except _Told:
        # What the ranks leave behind says how they ended.
        _logger.warning("told to stop; the ranks have %g s to save", command.stop_within_s)
    finally:
        stop_tree(agent, grace_s=_grace_s(command))
    return agent.returncode


def _grace_s(command: RankCommand) -> float:
    """Seconds from the request to stop to the kill: ranks that are late end themselves before."""
    return GRACE_S if command.stop_within_s is None else command.stop_within_s + GRACE_S


def agent_command_line(command: RankCommand) -> list[str]:
    """Command line of the agent, with every process of the tree bound to its parent."""
    bare = [sys.executable, "-I", "-S", str(_BOUND)]
    return [
        *(*bare, "agent", str(os.getpid()), "--"),
        *(sys.executable, "-m", command.agent_module),
        *("--standalone", "--nnodes", "1", "--nproc-per-node", str(command.num_ranks)),
        *("--local-addr", "127.0.0.1", "--max-restarts", "0", "--no-python"),
        *(*bare, "rank", "--"),
        *(sys.executable, "-m", command.module, *command.arguments),
    ]


def _is_running(agent: subprocess.Popen[bytes]) -> bool:
    try:
        agent.wait(timeout=_POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _import_paths(environment: Mapping[str, str]) -> list[str]:
    """PYTHONPATH under which ranks import the same megapack as this process."""
    root = Path(megapack.__file__).resolve().parent.parent
    present = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    # site-packages is on the path anyway, and must not come before the standard library.
    return present if root.name == "site-packages" else [str(root), *present]
