import json
import re
import sys

import pytest

from megapack.cli import main as cli
from megapack.jobs.prepare import PrepareJob
from megapack.steps import prepare as step
from megapack.steps.audit import AuditReport
from tests.support.prepare_jobs import WORDS, plain_line
from tests.support.toy_tokenizers import MARKED_TEMPLATE, save_tokenizer, words_tokenizer


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with `chats.jsonl` and a tokenizer `tok`; the current one."""
    (tmp_path / "chats.jsonl").write_text(
        "".join(f"{plain_line(number)}\n" for number in range(30)) + "no json\n"
    )
    save_tokenizer(words_tokenizer(WORDS), tmp_path / "tok", template=MARKED_TEMPLATE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FLAGS = ["--source", "chats.jsonl", "--tokenizer", "tok", "--row-length", "32"]
FLAGS += ["--long-documents", "split", "--store", "out"]


def test_two_commands_lead_from_a_file_to_an_inspected_dataset(home, capsys):
    assert cli.main(["prepare", *FLAGS]) == 0
    first = capsys.readouterr()
    assert "came in: 31 documents" in first.out
    assert "unreadable: 1" in first.out
    assert "chats.jsonl:31: expected JSON" in first.out
    assert f"look at it: megapack inspect {home}/out/datasets/dataset" in first.err
    assert cli.main(["inspect", "out"]) == 0
    shown = capsys.readouterr().out
    assert "source chats.jsonl" in shown
    assert re.search("« w", shown)


def test_progress_is_a_line_a_stage_where_nobody_watches(home, capsys):
    assert cli.main(["prepare", *FLAGS]) == 0
    error = capsys.readouterr().err
    stages = [line.split()[0] for line in error.splitlines()][:5]
    assert stages == ["check", "split", "tokenize", "pack", "audit"]
    assert "split     1 file, 30 conversations, 1 dropped (" in error
    assert "\x1b" not in error


def test_progress_is_bars_on_a_terminal(home, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert cli.main(["prepare", *FLAGS]) == 0
    captured = capsys.readouterr()
    assert "tokenize  30 documents, 0 dropped (" in captured.err
    assert "━" in captured.err
    assert "━" not in captured.out


def test_prepare_again_says_that_nothing_had_changed(home, capsys):
    cli.main(["prepare", *FLAGS])
    capsys.readouterr()
    assert cli.main(["prepare", *FLAGS]) == 0
    assert "nothing had changed: this version stood there already" in capsys.readouterr().err


def test_saved_job_gives_the_same_dataset_from_anywhere(home, capsys, monkeypatch):
    assert cli.main(["prepare", *FLAGS, "--save", "job.json"]) == 0
    job = PrepareJob.load(home / "job.json")
    assert job.sources[0].uri == f"{home}/chats.jsonl"
    assert (job.tokenizer, job.store) == (f"{home}/tok", f"{home}/out")
    monkeypatch.chdir("/")
    assert cli.main(["prepare", str(home / "job.json")]) == 0
    assert "nothing had changed" in capsys.readouterr().err


def test_flags_and_settings_are_laid_over_a_job_file(home, capsys):
    cli.main(["prepare", *FLAGS, "--save", "job.json"])
    changes = ["--row-length", "64", "--set", "pack.seed=3", "--save", "other.json"]
    assert cli.main(["prepare", "job.json", *changes]) == 0
    job = PrepareJob.load(home / "other.json")
    assert (job.pack.row_length, job.pack.seed) == (64, 3)
    assert job.tokenize.long_documents.value == "split"
    assert "version 2" in capsys.readouterr().out


def test_what_has_no_default_is_named_in_one_line(home, capsys):
    assert cli.main(["prepare", "--source", "chats.jsonl"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for flag in ("--tokenizer", "--row-length", "--long-documents", "--store"):
        assert flag in error
    assert "--source" not in error
    assert "split, truncate, drop, error" in error


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--long-documents", "shorten"], "tokenize.long_documents: Input should be 'split'"),
        (["--set", "pack_for.context_parallel_size=3"], "32 is not a multiple of row granularity"),
        (["--set", "unknown=3"], "unknown: no such field. Known: sources"),
        (["--format", "chatml"], "tokenize.format: Input should be"),
        (["--source", "none.jsonl"], "none.jsonl"),
        (["--tokenizer", "org/none"], "names on a model hub are not looked up"),
    ],
)
def test_wrong_job_is_refused_before_anything_is_made(home, capsys, flags, told):
    assert cli.main(["prepare", *FLAGS, *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("megapack: ")
    assert told in error
    assert not list(home.glob("out/datasets/*"))


def test_job_file_that_is_no_job_is_one_line(home, capsys):
    (home / "job.json").write_text("[1]")
    assert cli.main(["prepare", "job.json"]) == 2
    assert "expected a JSON object in job.json, found list" in capsys.readouterr().err


def test_broken_law_exits_with_one(home, capsys, monkeypatch):
    found = AuditReport(num_rows=1, num_checks=2, violations=("rows differ",))
    monkeypatch.setattr(step, "audit", lambda _, **__: found)
    assert cli.main(["prepare", *FLAGS]) == 1
    assert "the audit found:\n  rows differ" in capsys.readouterr().out


def test_stopped_by_the_keyboard_is_one_line(home, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(step, "split_source", stop)
    assert cli.main(["prepare", *FLAGS]) == 130
    assert capsys.readouterr().err.endswith("what was finished is not done again.\n")


def test_sources_of_one_name_are_told_apart(home, capsys):
    (home / "a").mkdir()
    (home / "a" / "chats.jsonl").write_text(plain_line(7) + "\n")
    assert cli.main(["prepare", *FLAGS, "--source", "a/chats.jsonl", "--save", "job.json"]) == 0
    names = [one["name"] for one in json.loads((home / "job.json").read_text())["sources"]]
    assert names == [f"{home}/chats.jsonl", f"{home}/a/chats.jsonl"]


def test_an_empty_source_is_named(home, capsys):
    (home / "empty.jsonl").write_text("")
    assert cli.main(["prepare", *FLAGS[2:], "--source", "empty.jsonl"]) == 2
    assert re.search(r"found no record at all in \S+/empty\.jsonl; ", capsys.readouterr().err)
