"""`python -m benchmarks`: what is chosen, what is kept, and the exit code."""

import importlib
import sys

import pytest

from benchmarks.runner import Ending, Run

command = importlib.import_module("benchmarks.__main__")


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Calls the command; each benchmark meets its goals, except those named."""
    monkeypatch.setattr(command, "_RESULTS", tmp_path)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    ran = []

    def work(*words, unmet=()):
        def fake(benchmark, **_):
            ran.append(benchmark.module)
            lines = [
                {
                    "goal": name,
                    "what": "work",
                    "measured": 1,
                    "bound": 2,
                    "sense": "<=",
                    "unit": "x",
                }
                | {"status": "unmet" if name in unmet else "met"}
                for name in benchmark.goals
            ]
            return Run(benchmark=benchmark, ending=Ending.DONE, seconds=1, lines=lines)

        monkeypatch.setattr(command, "run", fake)
        monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
        return command.main()

    work.ran, work.results = ran, tmp_path
    return work


def test_whole_run_is_kept_with_the_machine_and_versions(call):
    assert call("--strict") == 0
    (kept,) = call.results.iterdir()
    text = kept.read_text()
    assert kept.name.endswith("-cores.md")
    assert "- processor: " in text
    assert "- numpy: " in text
    assert "| P8 | stored row to training tensors |" in text


@pytest.mark.parametrize("words", [["P7"], ["bench_store"], ["P7,P8"]])
def test_part_runs_its_benchmark_alone_and_is_not_kept(call, words, capsys):
    assert call(*words) == 0
    assert call.ran == ["bench_store"]
    assert not list(call.results.iterdir())
    shown = capsys.readouterr().out
    assert "P7  met" in shown
    assert ("P8  met" in shown) == (words != ["P7"])


def test_unmet_goal_fails_only_when_strict(call):
    assert call("P6", unmet=["P6"]) == 0
    assert call("P6", "--strict", unmet=["P6"]) == 1


def test_unknown_goal_is_refused_by_name(call, capsys):
    with pytest.raises(SystemExit):
        call("P77")
    assert "found ['P77']" in capsys.readouterr().err
    assert call.ran == []
