import json
import re

import pytest

from megapack.cli import main as cli
from megapack.steps import prepare as step
from megapack.steps.audit import AuditReport
from tests.support.prepare_jobs import plain_line, prepare_job


def write(folder, numbers):
    (folder / "chats.jsonl").write_text("".join(f"{plain_line(number)}\n" for number in numbers))


@pytest.fixture
def home(tmp_path, capsys):
    """A folder with `chats.jsonl`, `job.json` and the first version of the dataset."""
    write(tmp_path, range(20))
    job = prepare_job(tmp_path, tmp_path / "chats.jsonl", validation_fraction=0.2)
    job.save(tmp_path / "job.json")
    assert cli.main(["refresh", str(tmp_path / "job.json")]) == 0
    assert "there is no version yet" in capsys.readouterr().out
    return tmp_path


def versions(home):
    found = sorted((home / "store/datasets/dataset/versions").glob("*.json"))
    return [int(one.stem) for one in found if "digest" in json.loads(one.read_text())]


def test_new_documents_make_a_version_and_nothing_new_makes_none(home, capsys):
    write(home, range(25))
    assert cli.main(["refresh", str(home / "job.json")]) == 0
    shown = capsys.readouterr()
    assert "refresh of version 1: parts of rows that lost no document are kept\n" in shown.out
    assert "documents added=5 removed=0" in shown.out
    assert f"{home}/store/datasets/dataset version 2\n" in shown.out
    stages = [line.split()[0] for line in shown.err.splitlines()][:6]
    assert stages == ["check", "split", "tokenize", "refresh", "audit", "retain"]
    assert cli.main(["refresh", str(home / "job.json")]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"nothing changed\n{home}/store/datasets/dataset version 2\n"
    assert "audit" not in shown.err
    assert versions(home) == [1, 2]
    assert cli.main(["report", str(home / "store"), "--versions"]) == 0
    _, head, newest, first = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "version"
    assert re.search(r"^ +2  20\S+, megapack .* 25 .* 5 documents added, 0 removed$", newest)
    assert re.search(r"^ +1  20\S+, megapack .* 20 .* 20 documents added, 0 removed$", first)


def test_documents_packed_again_are_told_with_their_reason(home, capsys):
    write(home, range(3, 20))
    assert cli.main(["refresh", str(home / "job.json")]) == 0
    shown = capsys.readouterr().out
    assert "documents added=0 removed=3\n" in shown
    assert re.search(r"packed again because their part of rows lost a document=\d+\n", shown)


def test_compact_packs_anew_and_old_versions_go(home, capsys):
    write(home, range(25))
    flags = ["--compact", "--keep-versions", "1"]
    assert cli.main(["refresh", str(home / "job.json"), *flags]) == 0
    assert "packed anew because: compact was asked for" in capsys.readouterr().out
    assert cli.main(["audit", str(home / "store"), "--version", "1"]) == 2
    assert cli.main(["audit", str(home / "store"), "--version", "2"]) == 0


def test_broken_law_exits_with_one_and_lets_nothing_go(home, capsys, monkeypatch):
    found = AuditReport(num_rows=1, num_checks=2, violations=("rows differ",))
    monkeypatch.setattr(step, "audit", lambda _, **__: found)
    write(home, range(25))
    assert cli.main(["refresh", str(home / "job.json"), "--keep-versions", "1"]) == 1
    assert "the audit found:\n  rows differ" in capsys.readouterr().out
    assert cli.main(["report", str(home / "store"), "--version", "1"]) == 0
