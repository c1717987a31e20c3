import json

import pytest

from megapack.errors import ConfigError, DataError, RankError, StoreError
from megapack.steps.launch.failures import failure_of, reporting_failures
from megapack.steps.launch.protocol import RunFiles
from megapack.steps.launch.tail import Relay

REPORT = """
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_18:14:22
  host      : box
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4242)
  error_file: <N/A>
Other Failures:
[1]:
  time      : 2026-11-29_18:14:22
  host      : box
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 4241)
  error_file: <N/A>
"""


@pytest.fixture
def files(tmp_path):
    run = RunFiles(scratch=tmp_path)
    run.folder.mkdir()
    return run


def failure(files, exit_code=1):
    relay = Relay(files, 2, on_line=lambda *_: None, on_metric=lambda _: None)
    relay.pump(last="flush")
    return failure_of(files, exit_code=exit_code, relay=relay)


def report(files, rank, error):
    with pytest.raises(type(error)), reporting_failures(files, rank):
        raise error


def test_failure_of_agent_report_names_rank_signal_and_lines(files):
    files.log(-1).write_text(REPORT)
    files.log(1).write_text("step 3\nstep 4\n")
    error = failure(files)
    assert isinstance(error, RankError)
    assert (error.rank, error.exit_code, error.tail) == (1, -9, ("step 3", "step 4"))
    assert "killed by SIGKILL, often the kernel's out-of-memory killer" in str(error)
    assert "Its last lines: step 3 | step 4." in str(error)


@pytest.mark.parametrize("kind", [ConfigError, DataError, StoreError])
def test_failure_keeps_the_kind_of_an_error_raised_on_purpose(files, kind):
    report(files, 0, RuntimeError("connection closed by peer"))
    report(files, 1, kind("tokens: expected 4, found 3."))
    error = failure(files)
    assert type(error) is kind
    assert str(error) == "rank 1: tokens: expected 4, found 3."


def test_failure_of_other_errors_is_the_earliest(files):
    report(files, 1, ValueError("first"))
    report(files, 0, ValueError("second"))
    assert "rank 1 ended with 1 (ValueError: first). It printed nothing." in str(failure(files))


def test_failure_of_subclass_keeps_the_known_kind(files):
    class NarrowError(DataError):
        pass

    report(files, 0, NarrowError("x"))
    assert json.loads(files.failure(0).read_text())["kind"] == "DataError"


def test_failure_without_any_report_blames_the_agent(files):
    files.log(-1).write_text("no space left\n")
    error = failure(files, exit_code=3)
    assert isinstance(error, RankError)
    assert (error.rank, error.exit_code, error.tail) == (-1, 3, ("no space left",))


def test_reporting_failures_writes_nothing_when_all_is_well(files):
    with reporting_failures(files, 0):
        pass
    assert not files.failure(0).exists()
