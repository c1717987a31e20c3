"""Programs are started and stopped by identity, with all their descendants."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra import processes

SECONDS = 30.0


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.02)
    pytest.fail(f"{path} did not appear within {SECONDS} s")


def launch(folder: Path, code: str, *, mark: str) -> processes.Launch:
    return processes.Launch(
        args=[sys.executable, "-c", code, str(folder)],
        environ=dict(os.environ),
        folder=folder,
        log=folder / "program.log",
        mark=mark,
    )


@pytest.fixture
def mark(tmp_path):
    name = f"test-{tmp_path}"
    yield name
    processes.stop(None, mark=name, seconds=1.0)


SPAWN_IN_OWN_SESSION = """
import pathlib, subprocess, sys, time
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
pathlib.Path(sys.argv[1], "child").write_text(str(child.pid))
time.sleep(300)
"""

IGNORE_SIGTERM = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1], "ready").write_text("yes")
time.sleep(300)
"""

REPORT_SIGINT = """
import pathlib, signal, sys
name = signal.getsignal(signal.SIGINT)
pathlib.Path(sys.argv[1], "sigint").write_text(str(name is signal.SIG_IGN))
"""


def test_stop_reaches_child_in_own_session(tmp_path, mark):
    record = processes.start(launch(tmp_path, SPAWN_IN_OWN_SESSION, mark=mark))
    child = int(wait_for(tmp_path / "child"))
    assert processes.identity_of(child) is not None
    processes.stop(record, mark=mark, seconds=10.0)
    assert processes.identity_of(record.pid) is None
    assert processes.identity_of(child) is None
    assert processes.marked(mark) == []


def test_stop_reaches_child_whose_parent_was_killed(tmp_path, mark):
    record = processes.start(launch(tmp_path, SPAWN_IN_OWN_SESSION, mark=mark))
    child = int(wait_for(tmp_path / "child"))
    os.kill(record.pid, signal.SIGKILL)
    os.waitpid(record.pid, 0)
    assert not processes.is_alive(record)
    processes.stop(record, mark=mark, seconds=10.0)
    assert processes.identity_of(child) is None


def test_stop_kills_program_that_ignores_sigterm(tmp_path, mark):
    record = processes.start(launch(tmp_path, IGNORE_SIGTERM, mark=mark))
    wait_for(tmp_path / "ready")
    started = time.monotonic()
    processes.stop(record, mark=mark, seconds=0.5)
    assert time.monotonic() - started < 10.0
    assert not processes.is_alive(record)


def test_stop_spares_process_that_took_over_a_pid(mark):
    with subprocess.Popen(["sleep", "300"]) as stranger:
        identity = processes.identity_of(stranger.pid)
        assert identity is not None
        old = processes.ProcessRecord(pid=stranger.pid, identity=identity + "0", log="")
        assert not processes.is_alive(old)
        processes.stop(old, mark=mark, seconds=0.2)
        assert stranger.poll() is None
        stranger.kill()


def test_identity_of_zombie_is_none():
    with subprocess.Popen([sys.executable, "-c", "pass"]) as program:
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{program.pid}").exists()
        assert processes.identity_of(program.pid) is None


def test_start_resets_ignored_sigint(tmp_path, mark):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        processes.start(launch(tmp_path, REPORT_SIGINT, mark=mark))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert wait_for(tmp_path / "sigint") == "False"


def test_start_keeps_previous_log(tmp_path, mark):
    for word in ("first", "second"):
        record = processes.start(launch(tmp_path, f"print({word!r})", mark=mark))
        assert processes.exit_status(record, seconds=SECONDS) == 0
    assert (tmp_path / "program.log").read_text() == "second\n"
    assert (tmp_path / "program.old").read_text() == "first\n"


def test_exit_status_of_running_program_is_none_and_of_failed_its_code(tmp_path, mark):
    sleeping = processes.start(launch(tmp_path, IGNORE_SIGTERM, mark=mark))
    assert processes.exit_status(sleeping, seconds=0.0) is None
    failing = processes.start(launch(tmp_path, "raise SystemExit(7)", mark=mark))
    assert processes.exit_status(failing, seconds=SECONDS) == 7


def test_start_of_missing_program_names_it(tmp_path):
    missing = dataclasses.replace(launch(tmp_path, "", mark="none"), args=["/no/such/program"])
    with pytest.raises(processes.StackError, match="/no/such/program could not be started"):
        processes.start(missing)
