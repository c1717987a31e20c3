"""How a failure in a rank becomes an error of the caller, with the same kind.

A rank that fails writes its error to a file. One that is killed cannot, and its peers then fail
too, because their collectives break: what they report is a consequence. So: errors that megapack
raised on purpose come first, then a rank that a signal ended, then the earliest of the rest.
"""

import json
import re
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from megapack.errors import (
    ConfigError,
    ContractError,
    DataError,
    MegapackError,
    RankError,
    StoppedError,
    StoreError,
)
from megapack.steps.launch.protocol import AGENT_RANK, RunFiles
from megapack.steps.launch.tail import Relay

_KINDS: Mapping[str, type[MegapackError]] = {
    kind.__name__: kind
    for kind in (ConfigError, DataError, StoreError, ContractError, StoppedError)
}
_SHOWN_LINES = 5
_STOPPED = re.compile(r"SignalException: .* got signal: (\d+)")
_REPORT = re.compile(r"^\s*rank\s*: (\d+) .*\n\s*exitcode\s*: (-?\d+) ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How one rank ended.

    Attributes:
        rank: global rank.
        exit_code: exit code, negative for a signal; 1 when only its error is known.
        kind: class name of its error, "" when it left none.
        message: text of its error.
        seconds: time of the error, seconds since 1970; infinity when it left none.
    """

    rank: int
    exit_code: int = 1
    kind: str = ""
    message: str = ""
    seconds: float = float("inf")


@contextmanager
def reporting_failures(files: RunFiles, rank: int) -> Iterator[None]:
    """Write whatever error leaves this block to the rank's failure file; it then goes on.

    Args:
        files: files of the run.
        rank: global rank of this process.
    """
    try:
        yield
    except BaseException as error:
        # megatron-core's CheckpointException derives from BaseException.
        report_failure(files, rank, error)
        raise


def report_failure(files: RunFiles, rank: int, error: BaseException) -> None:
    """Write an error to a rank's failure file.

    Args:
        files: files of the run.
        rank: global rank of this process.
        error: what ends it.
    """
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS]
    report = {
        "rank": rank,
        "kind": kinds[0] if kinds else type(error).__name__,
        "message": str(error),
        "seconds": time.time(),
        "traceback": "".join(traceback.format_exception(error)),
    }
    target = files.failure(rank)
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(report), encoding="utf-8")
    partial.replace(target)


def failure_of(files: RunFiles, *, exit_code: int, relay: Relay) -> MegapackError:
    """The error to raise for a run that ended badly.

    Args:
        files: files of the run.
        exit_code: exit code of the agent.
        relay: has relayed everything; supplies the last lines.

    Returns:
        The error of the rank that failed first, of its own kind if megapack raised it, else a
        `RankError`.
    """
    agent_log = _read(files.log(AGENT_RANK))
    failures = _failures(files, agent_log)
    if not failures:
        return _agent_error(exit_code, relay, files)
    first = min(failures, key=_precedence)
    if first.kind in _KINDS:
        return _KINDS[first.kind](f"rank {first.rank}: {first.message}")
    tail = relay.tail(first.rank)
    cause = f"{first.kind}: {first.message}" if first.kind else _exit_text(first.exit_code)
    return RankError(
        f"expected every rank to end with exit code 0; rank {first.rank} ended with "
        f"{first.exit_code} ({cause}). {_ending(tail)} Logs: {files.folder}.",
        rank=first.rank,
        exit_code=first.exit_code,
        tail=tail,
    )


def _agent_error(exit_code: int, relay: Relay, files: RunFiles) -> RankError:
    tail = relay.tail(AGENT_RANK)
    if stopped := _STOPPED.search("\n".join(tail)):
        # torchrun turns a signal sent to itself into exit code 1.
        exit_code = -int(stopped.group(1))
    return RankError(
        f"expected the launching agent to end with exit code 0; it ended with {exit_code} "
        f"({_exit_text(exit_code)}) and reported no failed rank. {_ending(tail)} "
        f"Logs: {files.folder}.",
        rank=AGENT_RANK,
        exit_code=exit_code,
        tail=tail,
    )


def _failures(files: RunFiles, agent_log: str) -> list[Failure]:
    """Every failed rank, from the agent's report and from the failure files."""
    codes = {int(rank): int(code) for rank, code in _REPORT.findall(agent_log)}
    failures = []
    for path in sorted(files.folder.glob("rank-*.error.json")):
        report = json.loads(_read(path))
        failures.append(
            Failure(
                rank=report["rank"],
                exit_code=codes.pop(report["rank"], 1),
                kind=report["kind"],
                message=report["message"],
                seconds=report["seconds"],
            )
        )
    failures.extend(Failure(rank=rank, exit_code=code) for rank, code in codes.items())
    return failures


def _precedence(failure: Failure) -> tuple[int, float, int]:
    """Smallest first: raised by megapack; killed; other errors; stopped by the agent."""
    if failure.kind in _KINDS:
        group = 0
    elif failure.exit_code < 0 and failure.exit_code != -signal.SIGTERM:
        group = 1
    elif failure.exit_code != -signal.SIGTERM:
        group = 2
    else:
        group = 3
    return group, failure.seconds, failure.rank


def _exit_text(exit_code: int) -> str:
    if exit_code >= 0:
        return "an error it did not report"
    name = signal.Signals(-exit_code).name
    hint = ", often the kernel's out-of-memory killer" if -exit_code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def _ending(tail: tuple[str, ...]) -> str:
    if not tail:
        return "It printed nothing."
    return "Its last lines: " + " | ".join(tail[-_SHOWN_LINES:]) + "."


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
