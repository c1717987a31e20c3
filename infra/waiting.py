"""Wait for a component with a bound, and say in one line what went wrong and where to read more."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infra.failures import StackError
from infra.processes import ProcessRecord, is_alive

_POLL_SECONDS = 0.1
_LONGEST_LINE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for what.

    Attributes:
        what: the component, as the user knows it.
        seconds: bound of the wait.
        log: file that explains a failure.
    """

    what: str
    seconds: float
    log: Path


def until_healthy(
    check: Callable[[], str | None], *, record: ProcessRecord, patience: Patience
) -> None:
    """Poll until the component is healthy.

    Args:
        check: returns None if healthy, else why not.
        record: the component's process; the wait ends at once when it dies.
        patience: bound and names for the message.

    Raises:
        StackError: the process ended or is not healthy in time.
    """
    started = time.monotonic()
    while True:
        problem = check()
        if problem is None:
            return
        if not is_alive(record):
            raise StackError(
                f"{patience.what} must keep running; it ended after "
                f"{time.monotonic() - started:.1f} s ({last_line(patience.log)}). "
                f"Read {patience.log}."
            )
        if time.monotonic() - started > patience.seconds:
            raise StackError(
                f"{patience.what} must be healthy within {patience.seconds:.0f} s; {problem} "
                f"({last_line(patience.log)}). Read {patience.log}."
            )
        time.sleep(_POLL_SECONDS)


def last_line(log: Path) -> str:
    """The last line of a log that says something, for an error message."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"log unreadable: {error.strerror}"
    lines = [line.strip() for line in text.splitlines() if line.strip(" \t│╭╮╰╯─")]
    if not lines:
        return "its log is empty"
    return f"last log line: {lines[-1][:_LONGEST_LINE]}"
