"""Start and stop the programs of the stack, by pid and never by name.

A pid alone is no identity: the kernel gives it out again. A record therefore carries the boot id
and the start tick of the process, and a signal is sent only while both still match. Every program
gets a mark in its environment which its descendants inherit, so that a run whose worker died, or a
rank in a session of its own, is still found. Linux only: everything is read from /proc.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.failures import StackError

MARK_VARIABLE = "MEGAPACK_LOCAL_STACK"

_POLL_SECONDS = 0.05
_KILL_WAIT_SECONDS = 5.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Fields of /proc/PID/stat counted after the ")" that ends the program name (proc(5) 3 and 22).
_STATE_FIELD = 0
_START_FIELD = 19
_DEAD_STATES = frozenset("ZXx")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """A started program; `identity` changes when the pid is given to another process."""

    pid: int
    identity: str
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start: argument list, whole environment, working folder, log file and mark."""

    args: Sequence[str]
    environ: Mapping[str, str]
    folder: Path
    log: Path
    mark: str


def identity_of(pid: int) -> str | None:
    """Name the process that has this pid now; None if there is none or it has ended (zombie)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    if fields[_STATE_FIELD] in _DEAD_STATES:
        return None
    return f"{_BOOT_ID.read_text(encoding='ascii').strip()}:{fields[_START_FIELD]}"


def is_alive(record: ProcessRecord | None) -> bool:
    """Tell whether the very process of the record still runs."""
    return record is not None and identity_of(record.pid) == record.identity


def start(launch: Launch) -> ProcessRecord:
    """Start a program in a session of its own, output to its log; the last log is kept as `.old`.

    Args:
        launch: what to start.

    Raises:
        StackError: the program could not be started.
    """
    if launch.log.exists():
        launch.log.replace(launch.log.with_suffix(".old"))
    environ = {**launch.environ, MARK_VARIABLE: launch.mark}
    # A worker that inherits "SIGINT ignored" (as children of `cmd &` do) never acts on SIGTERM:
    # its handler passes the signal on to itself as SIGINT. Handlers set from Python are reset by
    # exec; only "ignored" is inherited.
    restore = _accept_sigint()
    try:
        with launch.log.open("wb") as log:
            process = subprocess.Popen(
                list(launch.args),
                env=environ,
                cwd=launch.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise StackError(f"{launch.args[0]} could not be started: {error}") from error
    finally:
        restore()
    # The child outlives this command on purpose; without this, Popen would warn about it.
    process.returncode = 0
    identity = identity_of(process.pid)
    return ProcessRecord(pid=process.pid, identity=identity or "ended", log=str(launch.log))


def exit_status(record: ProcessRecord, *, seconds: float) -> int | None:
    """Wait for a program that this command started.

    Args:
        record: the program, a child of this process.
        seconds: bound of the wait.

    Returns:
        Its exit status (negative: the signal that ended it), or None if it still runs.
    """
    deadline = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(record.pid, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL_SECONDS)


def stop(record: ProcessRecord | None, *, mark: str, seconds: float) -> None:
    """Stop a program, its process group and all that carries its mark; nothing is left.

    SIGTERM first; SIGKILL to what still runs after `seconds`.

    Args:
        record: the program, or None if only its leftovers are to be stopped.
        mark: the mark given at start.
        seconds: patience between the two signals.

    Raises:
        StackError: a process survived SIGKILL (it hangs in the kernel).
    """
    targets = _targets(record, mark=mark)
    if not targets:
        return
    if record is not None and is_alive(record):
        _signal(record, signal.SIGTERM)
        _wait_gone([record], seconds=seconds)
    # Only now its children: a worker or a server that ends well ends them in its own order.
    _stop_all(lambda: _targets(record, mark=mark), seconds=seconds)


def marked(mark: str) -> list[ProcessRecord]:
    """List the running processes of this user whose environment carries the mark."""
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            entries = (folder / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
        if wanted not in entries:
            continue
        identity = identity_of(int(folder.name))
        if identity is not None:
            found.append(ProcessRecord(pid=int(folder.name), identity=identity, log=""))
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of a process in bytes; 0 if it has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _targets(record: ProcessRecord | None, *, mark: str) -> list[ProcessRecord]:
    found = marked(mark)
    if record is not None and is_alive(record) and all(one.pid != record.pid for one in found):
        found.append(record)
    return found


def _stop_all(find: Callable[[], list[ProcessRecord]], *, seconds: float) -> None:
    for sign, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, _KILL_WAIT_SECONDS)):
        deadline = time.monotonic() + patience
        signalled: set[int] = set()
        while found := find():
            # Asked again each time: a process that is ending may still start another one.
            for one in found:
                if one.pid not in signalled:
                    signalled.add(one.pid)
                    _signal(one, sign)
            if time.monotonic() > deadline:
                break
            _wait_gone(found, seconds=min(0.5, patience))
        else:
            return
    pids = ", ".join(str(one.pid) for one in find())
    if pids:
        raise StackError(f"Processes must end on SIGKILL; still there: {pids}. Reboot or wait.")


def _signal(record: ProcessRecord, sign: signal.Signals) -> None:
    if not is_alive(record):
        return
    try:
        os.kill(record.pid, sign)
    except ProcessLookupError:
        return


def _wait_gone(records: Iterable[ProcessRecord], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    waiting = list(records)
    while waiting and time.monotonic() < deadline:
        for one in waiting:
            _reap(one.pid)
        waiting = [one for one in waiting if is_alive(one)]
        if waiting:
            time.sleep(_POLL_SECONDS)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _accept_sigint() -> Callable[[], None]:
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if not ignored or threading.current_thread() is not threading.main_thread():
        return lambda: None
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def restore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    return restore
