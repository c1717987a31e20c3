"""From what benchmarks printed to a verdict on each goal, and to an exit code.

A goal is MISSING when a peer could not be run or no line came, unmet when a bound does not hold,
and met only when every line of it is. A missing peer never makes a goal look met.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from benchmarks.runner import Ending, Run
from benchmarks.suite import Goal


class Status(StrEnum):
    """Of a line or a goal, from good to bad."""

    MET = "met"
    UNMET = "unmet"
    MISSING = "MISSING"


class Strictness(StrEnum):
    """What makes the command fail."""

    BROKEN = "a benchmark failed or timed out"
    ANY = "that, or a goal is unmet or missing"


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison under a goal.

    Attributes:
        what: the work and the peer.
        measured: value, unit and bound, as people read them.
        status: of this comparison alone.
    """

    what: str
    measured: str
    status: Status


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and all that was measured for it."""

    goal: Goal
    lines: tuple[Line, ...]

    @property
    def status(self) -> Status:
        """The worst of its lines: unmet before missing, because it is the harder fact."""
        found = {line.status for line in self.lines}
        for status in (Status.UNMET, Status.MISSING):
            if status in found:
                return status
        return Status.MET


def judge(goals: Iterable[Goal], runs: Sequence[Run]) -> list[Verdict]:
    """One verdict a goal, in the order of `goals`."""
    return [Verdict(goal, tuple(_lines(goal, runs))) for goal in goals]


def exit_code(verdicts: Sequence[Verdict], runs: Sequence[Run], *, fail_on: Strictness) -> int:
    """0 or 1, as `fail_on` says."""
    broken = any(run.ending in (Ending.FAILED, Ending.TIMED_OUT) for run in runs)
    short = any(verdict.status is not Status.MET for verdict in verdicts)
    return int(broken or (fail_on is Strictness.ANY and short))


def _lines(goal: Goal, runs: Sequence[Run]) -> list[Line]:
    own = [run for run in runs if goal.id in run.benchmark.goals]
    printed = [line for run in runs for line in run.lines if line.get("goal") == goal.id]
    lines = [_line(line) for line in printed]
    for run in own:
        if run.ending is not Ending.DONE:
            lines.append(Line(run.benchmark.module, run.ending.value, Status.MISSING))
        elif not any(line.get("goal") == goal.id for line in run.lines):
            lines.append(Line(run.benchmark.module, "no measurement", Status.MISSING))
    return lines or [Line("", "no benchmark", Status.MISSING)]


def _line(line: Mapping[str, Any]) -> Line:
    what = " vs ".join(filter(None, (str(line["what"]), str(line.get("peer", "")))))
    if line["status"] == Status.MISSING:
        return Line(what, str(line["why"]), Status.MISSING)
    unit = str(line["unit"])
    space = "" if unit in ("", "x", "%") else " "
    bound = f"{line['sense']} {line['bound']:g}{space}{unit}"
    return Line(what, f"{line['measured']:g}{space}{unit} ({bound})", Status(line["status"]))
