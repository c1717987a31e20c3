import os
import signal
import sys

import pytest

from megapack.errors import ConfigError, RankError
from megapack.steps.launch import local
from megapack.steps.launch.local import agent_command_line, rank_environment, run_ranks
from megapack.steps.launch.protocol import RankCommand


def command(tmp_path, **changes):
    values = {"module": "m", "arguments": ("train", "job.json"), "num_ranks": 3}
    return RankCommand(**values, **{"scratch": tmp_path, **changes})


def test_environment_drops_the_ban_on_bytecode_and_keeps_the_command_last(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environment = rank_environment(command(tmp_path, environment={"OMP_NUM_THREADS": "3"}))
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["PYTHONPATH"].split(os.pathsep)[-1] == "/elsewhere"
    assert environment["MEGAPACK_RUN_SCRATCH"] == str(tmp_path)


def test_command_line_binds_agent_to_us_and_ranks_to_the_agent(tmp_path):
    line = agent_command_line(command(tmp_path))
    text = " ".join(line)
    assert f"bound.py agent {os.getpid()} -- {sys.executable} -m torch.distributed.run" in text
    assert "--nproc-per-node 3" in text
    assert text.endswith(f"bound.py rank -- {sys.executable} -m m train job.json")


def test_run_ranks_refuses_zero_ranks(tmp_path):
    refused = RankCommand(module="m", arguments=(), num_ranks=0, scratch=tmp_path)
    with pytest.raises(ConfigError, match=r"num_ranks = 0, expected at least 1"):
        run_ranks(refused, on_line=lambda *_: None, on_metric=lambda _: None)


def test_run_ranks_says_the_job_s_own_seconds_when_it_is_told_to_stop(
    tmp_path, monkeypatch, caplog
):
    def told(agent):
        os.kill(os.getpid(), signal.SIGTERM)
        agent.wait()

    monkeypatch.setattr(local, "_is_running", told)
    stopped = command(tmp_path, stop_within_s=12.5, agent_module="json.tool")
    with pytest.raises(RankError):
        run_ranks(stopped, on_line=lambda *_: None, on_metric=lambda _: None)
    assert caplog.messages == ["told to stop; the ranks have 12.5 s to save"]
