"""The runner of benchmarks, with small benchmarks written for the purpose."""

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks import runner
from benchmarks.machine import versions
from benchmarks.runner import Ending, Run, run
from benchmarks.suite import BENCHMARKS, GOALS, Benchmark, Goal
from benchmarks.table import as_markdown, as_text
from benchmarks.verdict import Status, Strictness, exit_code, judge

GOAL = Goal("P1", "plan", ">= 2x a peer")
HEAD = "from benchmarks.record import at_least, at_most, emit, missing\n"
MET = HEAD + "at_least('P1', 'plan', 3, 2, peer='slow', seconds=0.5)\nat_most('P1', 'rows', 2, 2)\n"
UNMET = HEAD + "at_least('P1', 'plan', 1.5, 2, peer='slow')\n"
MISSING = (
    HEAD + "at_least('P1', 'plan', 3, 2)\nmissing('P1', 'plan', peer='trl', why='not there')\n"
)
CRASHED = HEAD + "at_least('P1', 'plan', 3, 2)\nraise SystemExit('the peer broke')\n"
SILENT = HEAD + "emit('plan', rows=3)\nprint('a peer talks [1]')\n"


@pytest.fixture
def run_text(tmp_path, monkeypatch):
    """Runs the text of a benchmark as the runner does."""
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    (tmp_path / "fake").mkdir()

    def work(text: str, *, limit_s: float = 60, goals: tuple[str, ...] = ("P1",)) -> Run:
        (tmp_path / "fake" / "bench_fake.py").write_text(text)
        return run(
            Benchmark("bench_fake", goals, limit_s),
            python=Path(sys.executable),
            scratch=tmp_path / "logs",
            package="fake",
        )

    return work


@pytest.mark.parametrize(
    ("text", "ending", "status", "plain", "strict"),
    [
        (MET, Ending.DONE, Status.MET, 0, 0),
        (UNMET, Ending.DONE, Status.UNMET, 0, 1),
        (MISSING, Ending.DONE, Status.MISSING, 0, 1),
        (SILENT, Ending.DONE, Status.MISSING, 0, 1),
        (CRASHED, Ending.FAILED, Status.MISSING, 1, 1),
    ],
)
def test_verdict_and_exit_code_follow_what_was_printed(
    run_text, text, ending, status, plain, strict
):
    done = run_text(text)
    verdicts = judge([GOAL], [done])
    assert done.ending is ending
    assert [verdict.status for verdict in verdicts] == [status]
    assert exit_code(verdicts, [done], fail_on=Strictness.BROKEN) == plain
    assert exit_code(verdicts, [done], fail_on=Strictness.ANY) == strict


def test_table_names_the_missing_peer_and_the_bound(run_text):
    done = run_text(MISSING)
    text = as_text(judge([GOAL], [done]), [done])
    assert "P1  MISSING plan: >= 2x a peer" in text
    assert "plan vs trl" in text
    assert "not there" in text
    assert "3x (>= 2x)" in text


def test_crash_keeps_the_lines_before_it_and_shows_the_end_of_the_log(run_text):
    done = run_text(CRASHED)
    text = as_text(judge([GOAL], [done]), [done])
    assert [line["measured"] for line in done.lines] == [3]
    assert "the peer broke" in text
    assert "FAILED" in text


def test_benchmark_over_its_limit_is_killed_with_all_it_started(run_text, tmp_path):
    text = (
        HEAD
        + "import subprocess, sys, time\n"
        + f"child = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(600)'])\n"
        + f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        + "at_least('P1', 'plan', 3, 2)\ntime.sleep(600)\n"
    )
    done = run_text(text, limit_s=3)
    assert done.ending is Ending.TIMED_OUT
    assert [line["status"] for line in done.lines] == ["met"]
    assert judge([GOAL], [done])[0].status is Status.MISSING
    assert exit_code([], [done], fail_on=Strictness.BROKEN) == 1
    assert _is_gone(int((tmp_path / "pid").read_text()))


def test_benchmark_that_is_not_there_leaves_its_goals_missing(run_text, tmp_path):
    absent = run(
        Benchmark("bench_absent", ("P1",), 5),
        python=Path(sys.executable),
        scratch=tmp_path / "logs",
        package="fake",
    )
    assert absent.ending is Ending.NOT_THERE
    verdicts = judge([GOAL], [absent])
    assert verdicts[0].status is Status.MISSING
    assert exit_code(verdicts, [absent], fail_on=Strictness.ANY) == 1


def test_benchmark_runs_with_one_thread_and_without_network(run_text):
    done = run_text(
        HEAD
        + "import os\n"
        + "emit('env', omp=os.environ['OMP_NUM_THREADS'], hub=os.environ['HF_HUB_OFFLINE'])\n"
    )
    assert done.lines == [{"benchmark": "env", "omp": "1", "hub": "1"}]


def test_one_unmet_line_makes_the_goal_unmet_whatever_else_is_missing(run_text):
    done = run_text(MISSING + UNMET)
    assert judge([GOAL], [done])[0].status is Status.UNMET


def test_markdown_holds_the_machine_the_verdicts_and_every_line(run_text):
    done = run_text(MET)
    text = as_markdown(judge([GOAL], [done]), [done], head={"commit": "abc"})
    assert "- commit: abc" in text
    assert "| P1 | plan | >= 2x a peer | met |" in text
    assert "| P1 | plan vs slow | 3x (>= 2x) | met |" in text
    assert '"seconds": 0.5' in text


def test_each_goal_has_a_benchmark_and_each_benchmark_known_goals():
    measured = {name for benchmark in BENCHMARKS for name in benchmark.goals}
    assert measured == {goal.id for goal in GOALS}


def test_version_of_a_package_that_is_not_there_is_missing(tmp_path):
    found = versions(tmp_path)
    assert found["numpy"] != "MISSING"
    assert set(found.values()) - {"MISSING"}


def _is_gone(pid: int) -> bool:
    """Whether a process has ended, given a moment to be reaped by its new parent."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        os.sched_yield()
    return False
