"""What a benchmark prints: one JSON line a measurement, read again by the runner.

A goal line compares a ratio or a share with its bound, so it holds on any machine. An information
line (`emit`) is kept with the results and judged by nobody.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Value = str | float | bool | None


def cpu_seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """Least CPU time of this process over a few calls."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def emit(name: str, **values: Value) -> None:
    """Print an information line."""
    _print({"benchmark": name, **values})


def at_least(
    goal: str,
    what: str,
    measured: float,
    bound: float,
    *,
    unit: str = "x",
    peer: str = "",
    **details: Value,
) -> None:
    """Print a goal line that is met when `measured` >= `bound`.

    Args:
        goal: its id, `P1` to `P10`.
        what: the work, in a few words; one goal may have several lines.
        measured: the ratio or share found.
        bound: the least that will do.
        unit: of both: `x`, `%`, `B/token`.
        peer: what it was compared with, if anything.
        details: anything else worth keeping: seconds, rows, versions.
    """
    met = bool(measured >= bound)
    _goal(goal, what, _Verdict(measured, bound, ">=", unit, met), peer=peer, details=details)


def at_most(
    goal: str,
    what: str,
    measured: float,
    bound: float,
    *,
    unit: str = "x",
    peer: str = "",
    **details: Value,
) -> None:
    """Print a goal line that is met when `measured` <= `bound`; see `at_least`."""
    met = bool(measured <= bound)
    _goal(goal, what, _Verdict(measured, bound, "<=", unit, met), peer=peer, details=details)


def missing(goal: str, what: str, *, peer: str, why: str) -> None:
    """Print that a peer could not be run, so this part of the goal was not measured."""
    _print({"goal": goal, "what": what, "peer": peer, "status": "MISSING", "why": why})


class _Verdict(NamedTuple):
    measured: float
    bound: float
    sense: str
    unit: str
    met: bool


def _goal(
    goal: str, what: str, verdict: _Verdict, *, peer: str, details: Mapping[str, Value]
) -> None:
    _print(
        {
            "goal": goal,
            "what": what,
            "peer": peer,
            "measured": float(f"{float(verdict.measured):.5g}"),
            "bound": verdict.bound,
            "sense": verdict.sense,
            "unit": verdict.unit,
            "status": "met" if verdict.met else "unmet",
            **details,
        }
    )


def _print(line: Mapping[str, Value]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
