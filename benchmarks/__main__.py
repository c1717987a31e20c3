"""`python -m benchmarks`: run the suite, print the verdicts, keep the results."""

import argparse
import datetime
import os
import sys
from pathlib import Path

from benchmarks import machine, table
from benchmarks.peer_environment import peer_python, peer_site
from benchmarks.runner import ROOT, Run, run
from benchmarks.suite import BENCHMARKS, GOALS, Benchmark, Goal
from benchmarks.verdict import Strictness, exit_code, judge

_SCRATCH = ROOT / ".local" / "bench"
_RESULTS = ROOT / "benchmarks" / "results"


def main() -> int:
    """Run what was asked for; the exit code says whether all of it stands."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("only", nargs="*", help="goals (P6) or benchmarks (bench_store)")
    parser.add_argument("--strict", action="store_true", help="fail on an unmet or missing goal")
    asked = parser.parse_args()
    only = {name for word in asked.only for name in word.replace(",", " ").split()}
    unknown = only - {goal.id for goal in GOALS} - {chosen.module for chosen in BENCHMARKS}
    if unknown:
        parser.error(f"expected P1 to P10 or the name of a benchmark, found {sorted(unknown)}")
    goals, benchmarks = _choose(only)
    head = machine.describe()
    runs = [_run(benchmark) for benchmark in benchmarks]
    verdicts = judge(goals, runs)
    sys.stdout.write("\n" + table.as_text(verdicts, runs))
    if only:
        sys.stdout.write(table.information(runs))
    else:
        head |= machine.versions(peer_site())
        _keep(table.as_markdown(verdicts, runs, head=head))
    fail_on = Strictness.ANY if asked.strict else Strictness.BROKEN
    return exit_code(verdicts, runs, fail_on=fail_on)


def _choose(only: set[str]) -> tuple[list[Goal], list[Benchmark]]:
    """Named goals with their benchmarks, or named benchmarks with their goals; all by default."""
    if not only:
        return list(GOALS), list(BENCHMARKS)
    chosen = [b for b in BENCHMARKS if b.module in only or only & set(b.goals)]
    wanted = only | {name for b in chosen if b.module in only for name in b.goals}
    return [goal for goal in GOALS if goal.id in wanted], chosen


def _run(benchmark: Benchmark) -> Run:
    sys.stdout.write(f"{benchmark.module} (at most {benchmark.limit_s:.0f} s) ... ")
    sys.stdout.flush()
    done = run(benchmark, python=peer_python(), scratch=_SCRATCH / "logs")
    sys.stdout.write(f"{done.ending}, {done.seconds:.0f} s\n")
    return done


def _keep(text: str) -> Path:
    """Write today's result of this kind of machine; an earlier one of today is replaced."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    path = _RESULTS / f"{today}-{os.cpu_count()}-cores.md"
    path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"\nresults: {path.relative_to(ROOT)}\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
