"""The train and extract steps with the real agent: a rank is killed, the next call goes on."""

import os
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from megapack.errors import RankError
from megapack.records.refs import FolderRef
from megapack.steps.extract import extract
from megapack.steps.hugging_face.folder import open_folder
from megapack.steps.launch.local import run_ranks
from megapack.steps.launch.process_tree import descendants
from megapack.steps.train import train
from tests.support.hf_folder import write_folder
from tests.support.tiny_dataset import extract_job, layout, make_dataset, make_rows, train_job

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def worker_pids() -> list[int]:
    """Ranks among this process's descendants."""
    found = []
    for pid in descendants(os.getpid()):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"megapack.engine.worker" in words and b"torch.distributed.run" not in words:
            found.append(pid)
    return found


def run_with_plain_agent(command, *, on_line, on_metric):
    plain = replace(command, agent_module="tests.support.plain_agent")
    run_ranks(plain, on_line=on_line, on_metric=on_metric)


def test_train_goes_on_after_a_killed_rank_and_is_reused_when_done(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    dataset = make_dataset(tmp_path / "data", make_rows(10, seed=1), make_rows(3, seed=2))
    job = train_job(dataset, tmp_path / "out", parallel=layout(cp=2))
    before = descendants(os.getpid())
    first: list[dict] = []
    killed: dict[str, float] = {}

    def kill_one_rank(metric):
        first.append(metric)
        if metric["step"] == 3 and metric["kind"] == "train":
            killed["ranks"] = worker_pids()
            os.kill(killed["ranks"][1], signal.SIGKILL)
            killed["at"] = time.monotonic()

    with pytest.raises(RankError, match=r"killed by SIGKILL") as caught:
        train(job, on_line=lambda *_: None, on_metric=kill_one_rank)
    assert time.monotonic() - killed["at"] < 10
    assert caught.value.exit_code == -9
    assert len(killed["ranks"]) == 2
    assert descendants(os.getpid()) == before
    (kept,) = temporary.iterdir()
    assert sorted(path.name for path in kept.iterdir()) == ["job.json", "ranks"]

    # At another layout; and the agent that costs no import of torch is enough from here on.
    second: list[dict] = []
    lines: list[str] = []
    started = time.monotonic()
    resumed = train_job(dataset, tmp_path / "out")
    done = train(
        resumed,
        on_line=lambda _, line: lines.append(line),
        on_metric=second.append,
        launcher=run_with_plain_agent,
    )
    took = time.monotonic() - started
    assert any("resumed step=2" in line for line in lines), lines
    assert (done.step, done.consumed_rows, done.reused) == (6, 24, False)
    losses = [
        {m["step"]: m["loss"] for m in run if m["kind"] == "train"} for run in (first, second)
    ]
    assert sorted(losses[1]) == [1, 2, 3, 4, 5, 6]
    assert [losses[1][step] for step in (1, 2)] == [losses[0][step] for step in (1, 2)]
    assert losses[1][3] == pytest.approx(losses[0][3], rel=2e-5)

    started = time.monotonic()
    again = train(job, on_line=lambda *_: None, on_metric=lambda _: None)
    assert again == done.model_copy(update={"reused": True})
    assert time.monotonic() - started < took / 4
    assert list(temporary.iterdir()) == [kept]


def test_extraction_goes_on_after_a_killed_rank_and_is_reused_when_done(tmp_path):
    dataset = make_dataset(tmp_path / "data", make_rows(10, seed=1), make_rows(3, seed=2))
    folder = open_folder(str(write_folder(tmp_path / "teacher")))
    ref = FolderRef(uri=str(folder.path), digest=folder.digest())
    job = extract_job(dataset, ref, tmp_path / "payload", shard_rows=1)
    job = job.model_copy(update={"model": folder.model})

    def kill_the_rank(metric):
        if metric["shards"] == 2:
            for pid in worker_pids():
                os.kill(pid, signal.SIGKILL)

    def run(on_metric):
        return extract(
            job, on_line=lambda *_: None, on_metric=on_metric, launcher=run_with_plain_agent
        )

    with pytest.raises(RankError, match=r"killed by SIGKILL"):
        run(kill_the_rank)
    metrics: list[dict] = []
    payload = run(metrics.append)
    assert metrics[0]["shards"] >= 2
    assert (metrics[-1]["shards"], metrics[-1]["rows"]) == (13, 13)
    assert payload.num_documents == sum(
        row.layout.num_segments for row in (*make_rows(10, seed=1), *make_rows(3, seed=2))
    )
    assert run(metrics.append) == payload.model_copy(update={"reused": True})
