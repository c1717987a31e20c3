"""The main job on the real stack: Prefect server and worker, S3 store, torchrun, megatron-core.

One stack serves all tests of this file, in order: a run, the same run again, a run whose rank is
killed, a run that is cancelled.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from torch.utils.data import DataLoader

from infra import http
from infra.demo.build import build_demo
from megapack.batch.multimodal_stored import StoredMultimodalDataset
from megapack.steps.multimodal.pack import pack_multimodal
from megapack.steps.multimodal.stored import open_multimodal
from megapack.store.location import open_location
from megapack.store.manifest import PartKind
from megapack.store.payload_reader import open_payloads
from megapack.store.versions import latest_version, read_version
from tests.support.shapes_rows import pack_job

PROJECT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.flow, pytest.mark.slow, pytest.mark.timeout(420)]

MODEL = {
    "num_layers": 2,
    "hidden_size": 32,
    "ffn_hidden_size": 64,
    "num_attention_heads": 4,
    "num_query_groups": 2,
}
STEPS, CHECKPOINT_EVERY, EVALUATE_EVERY = 12, 4, 6


class Stack:
    """A running stack and what a client needs to know of it."""

    def __init__(self, root: Path):
        self.root = root
        printed = self.control("env").stdout
        words = [word.partition("=") for word in shlex.split(printed, comments=True)]
        self.environ = {name: value for name, equals, value in words if equals}
        self.api = self.environ["PREFECT_API_URL"].rstrip("/")

    def control(self, command):
        done = subprocess.run(
            [sys.executable, "-m", "infra.local", command, "--root", str(self.root)],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def answer(self, path, body=None):
        """The server's answer; it says 503 while its database is locked by another request."""
        deadline = time.monotonic() + 30.0
        while True:
            answer = http.call(
                f"{self.api}/{path}",
                method="GET" if body is None else "POST",
                body=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
                timeout=30.0,
            )
            if answer.status != 503 or time.monotonic() > deadline:
                return answer
            time.sleep(0.5)

    def call(self, path, body=None):
        answer = self.answer(path, body)
        assert answer.status in (200, 201), answer.body[:500]
        return answer.json()

    def start(self, store, **changes):
        """Start the main job over a store prefix; returns the run's id."""
        return self.start_flow("pack-and-train", parameters(self.root, store) | changes)

    def start_flow(self, flow, chosen):
        """Start a deployment; returns the run's id."""
        deployment = self.call(f"deployments/name/{flow}/local")
        path = f"deployments/{deployment['id']}/create_flow_run"
        return self.call(path, {"parameters": chosen})["id"]

    def state(self, run):
        return self.call(f"flow_runs/{run}")["state"]

    def wait(self, run, *, seconds=240.0):
        """The run's final state."""
        ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        # Seldom: ten requests a second cost the server a fifth of a core, and the run that much.
        wait_for(
            lambda: self.state(run)["type"] in ends,
            seconds=seconds,
            what=f"run {run} to end",
            every_s=0.7,
        )
        return self.state(run)

    def task_runs(self, run):
        """State name of each task run by its name without the random end.

        The server learns of task states from events, a little after the run has ended.
        """
        query = {"flow_runs": {"id": {"any_": [run]}}}
        ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")

        seen = []

        def settled():
            seen.append(self.call("task_runs/filter", query))
            done = [one["id"] for one in seen[-1] if one["state_type"] in ends]
            same = len(seen) > 1 and {one["id"] for one in seen[-2]} == set(done)
            if not same:
                time.sleep(2.0)
            return same and len(done) == len(seen[-1]) > 0

        wait_for(settled, seconds=90, what=f"the task runs of {run} to settle")
        return sorted(
            (re.sub(r"-[0-9a-f]{3}$", "", one["name"]), one["state_name"]) for one in seen[-1]
        )

    def logs(self, run):
        query = {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200, "sort": "TIMESTAMP_DESC"}
        return "\n".join(one["message"] for one in self.call("logs/filter", query))

    def ranks(self):
        """Processes of this stack that are torchrun or a rank of it."""
        found = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
                if not ("megapack.engine.worker" in line or "torch.distributed.run" in line):
                    continue
                if process.environ().get("MEGAPACK_ROOT") == str(self.root):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def workers(self):
        """Ranks alone: the processes whose parent is the agent."""
        return [one for one in self.ranks() if "torch.distributed.run" not in one.cmdline()]


def wait_for(condition, *, seconds, what, every_s=0.1):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(every_s)


def parameters(root, store):
    return {
        "prepare": {
            "sources": [{"uri": str(root / "demo/data"), "name": "demo"}],
            "tokenizer": str(root / "demo/tokenizer"),
            "tokenize": {"format": "chat_template", "long_documents": "split"},
            "pack": {"row_length": 256},
            "pack_for": {"context_parallel_size": 2},
            "validation_fraction": 0.1,
            "store": store,
        },
        "train": {
            "model": MODEL,
            "parallel": {"context_parallel_size": 2},
            "optimizer": {"lr": 1e-2, "warmup_steps": 2},
            "steps": STEPS,
            "global_batch_rows": 4,
            "evaluate_every": EVALUATE_EVERY,
            "evaluation_rows": 4,
            "checkpoint_every": CHECKPOINT_EVERY,
        },
        "extract": {
            "parallel": {"context_parallel_size": 2},
            "payload": {"top_k": 4, "hidden": "bf16"},
            "max_rows": 8,
        },
    }


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    root = tmp_path_factory.mktemp("project")
    for name in ("flows", "tasks", "megapack", "infra", "prefect.yaml"):
        (root / name).symlink_to(PROJECT / name)
    build_demo(root / "demo", size=150, vocabulary_size=1500)
    up = [sys.executable, "-m", "infra.local", "up", "--root", str(root)]
    done = subprocess.run(up, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    running = Stack(root)
    saved = dict(os.environ)
    os.environ.update(running.environ)
    try:
        yield running
    finally:
        os.environ.clear()
        os.environ.update(saved)
        running.control("down")


@pytest.fixture(scope="module")
def finished(stack):
    """Id of a run of the job over `first`, completed."""
    run = stack.start("s3://megapack/first")
    state = stack.wait(run)
    assert state["type"] == "COMPLETED", stack.logs(run)
    return run


def history(store):
    """Metric objects of the one training run in a store."""
    checkpoints = open_location(f"{store}/checkpoints")
    uris = {one.key.split("/")[0] for one in checkpoints.list_keys("")}
    assert len(uris) == 1
    location = open_location(f"{store}/checkpoints/{uris.pop()}")
    (part,) = [p for p in read_version(location).manifest.parts if p.name == "metrics.jsonl"]
    return [json.loads(line) for line in location.get(part.key).splitlines()]


def test_main_job_completes_and_learns(stack, finished):
    metrics = history("s3://megapack/first")
    evaluations = [one["loss"] for one in metrics if one["kind"] == "evaluation"]
    assert len(evaluations) == 1 + STEPS // EVALUATE_EVERY
    assert evaluations[-1] < evaluations[0] - 1.0
    assert [one["step"] for one in metrics if one["kind"] == "train"] == list(range(1, STEPS + 1))
    query = {"artifacts": {"flow_run_id": {"any_": [finished]}}}
    keys = {one["key"] for one in stack.call("artifacts/filter", query)}
    assert {
        "packing-report",
        "packing-pictures",
        "training-progress",
        "loss-curve",
        "summary",
    } <= keys
    states = stack.task_runs(finished)
    assert ("train", "Completed") in states
    assert all(state == "Completed" for _, state in states)
    assert "[rank 0]" in stack.logs(finished)


def test_main_job_again_reuses_every_step(stack, finished):
    run = stack.start("s3://megapack/first")
    assert stack.wait(run)["type"] == "COMPLETED", stack.logs(run)
    states = stack.task_runs(run)
    always = {"preflight", "preflight-payload", "resolve-model", "list-sources", "summary"}
    assert {state for name, state in states if name not in always} == {"Reused"}
    assert {"pack", "train", "extract"} <= {name for name, _ in states}
    assert any(name.startswith("tokenize-") for name, _ in states)
    assert latest_version("s3://megapack/first/datasets/dataset") == 1


def test_extract_teacher_finds_what_the_main_job_has_extracted_and_refuses_too_much(
    stack, finished
):
    store = "s3://megapack/first"
    chosen = {"dataset": store, "teacher": store, "store": store}
    chosen["extract"] = parameters(stack.root, store)["extract"]
    run = stack.start_flow("extract-teacher", chosen)
    # The limit is no part of what is stored: the flow refuses it before it looks for a payload.
    limited = chosen | {"extract": {**chosen["extract"], "max_bytes": 1000}}
    over = stack.start_flow("extract-teacher", limited)
    assert stack.wait(run)["type"] == "COMPLETED", stack.logs(run)
    assert ("extract", "Reused") in stack.task_runs(run)
    assert "payload kind=topk dtype=fp16 width=4" in stack.logs(run)
    (payload,) = {one.key.split("/")[0] for one in open_location(f"{store}/payloads").list_keys("")}
    assert open_payloads(f"{store}/payloads/{payload}").vocabulary()["<pad>"] >= 0
    refused = stack.wait(over)
    assert refused["type"] == "FAILED"
    assert "ExtractSettings.max_bytes = 1,000 bytes, expected at least" in refused["message"]


def test_killed_rank_is_retried_and_ends_with_the_same_losses(stack, finished):
    run = stack.start("s3://megapack/killed", extract=None)
    checkpoints = f"s3://megapack/killed/checkpoints/{address_of(stack)}"
    wait_for(
        lambda: latest_version(checkpoints) >= 1,
        seconds=200,
        what="a checkpoint",
        every_s=0.3,
    )
    victim = stack.workers()[-1]
    victim.send_signal(signal.SIGKILL)
    state = stack.wait(run)
    assert state["type"] == "COMPLETED", stack.logs(run)
    (train,) = [
        one
        for one in stack.call("task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        if one["name"].startswith("train-")
    ]
    assert train["run_count"] == 2
    undisturbed = [strip(one) for one in history("s3://megapack/first")]
    assert [strip(one) for one in history("s3://megapack/killed")] == undisturbed
    assert stack.ranks() == []


def test_cancelled_run_leaves_no_process(stack, finished):
    # Another seed over the same rows: what is prepared is reused, and the training is a new one.
    other = parameters(stack.root, "s3://megapack/first")["train"] | {"seed": 2}
    run = stack.start("s3://megapack/first", train=other, extract=None)
    wait_for(lambda: len(stack.workers()) == 2, seconds=200, what="two ranks", every_s=0.5)
    cancelling = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    stack.call(f"flow_runs/{run}/set_state", cancelling)
    assert stack.wait(run, seconds=90)["type"] == "CANCELLED"
    wait_for(lambda: not stack.ranks(), seconds=45, what="the ranks to be gone")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenize": {"format": "nemotron", "long_documents": "split"}}, "nemotron-h-aligned"),
        ({"pack": {"row_length": 255}}, "Use 252 or 256"),
        ({"sources": [{"uri": "/nowhere/chats.jsonl"}]}, "/nowhere/chats.jsonl"),
    ],
)
def test_wrong_job_fails_before_any_rank_starts(stack, finished, change, message):
    wrong = parameters(stack.root, "s3://megapack/wrong")
    wrong["prepare"] |= change
    deployment = stack.call("deployments/name/pack-and-train/local")
    answer = stack.answer(f"deployments/{deployment['id']}/create_flow_run", {"parameters": wrong})
    if answer.status not in (200, 201):
        assert message in answer.body.decode()
        return
    run = answer.json()["id"]
    state = stack.wait(run, seconds=90)
    assert state["type"] == "FAILED"
    assert message in state["message"]
    query = {"flow_runs": {"id": {"any_": [run]}}}
    assert not [t for t in stack.call("task_runs/filter", query) if t["name"].startswith("train")]


def test_nightly_refresh_publishes_a_version_only_when_sources_changed(stack, finished):
    prepare = parameters(stack.root, "s3://megapack/first")["prepare"]
    dataset = "s3://megapack/first/datasets/dataset"
    run = stack.start_flow("nightly-refresh", {"prepare": prepare})
    assert stack.wait(run)["type"] == "COMPLETED", stack.logs(run)
    assert ("refresh", "Reused") in stack.task_runs(run)
    assert latest_version(dataset) == 1
    chat = [{"role": "user", "content": "Anything new?"}, {"role": "assistant", "content": "Yes."}]
    added = stack.root / "added.jsonl"
    added.write_text(json.dumps({"messages": chat}) + "\n")
    prepare["sources"].append({"uri": str(added), "name": "added"})
    run = stack.start_flow("nightly-refresh", {"prepare": prepare})
    assert stack.wait(run)["type"] == "COMPLETED", stack.logs(run)
    states = stack.task_runs(run)
    assert [state for name, state in states if name.startswith("tokenize-")].count("Completed") == 1
    assert ("split-added.jsonl", "Completed") in states
    assert ("split-alpaca.jsonl", "Reused") in states
    versions = [read_version(dataset, number).manifest for number in (1, 2)]
    assert versions[1].count("documents_in") == versions[0].count("documents_in") + 1
    rows = [{part.key for part in one.parts_of(PartKind.ROWS)} for one in versions]
    assert rows[0] < rows[1]
    assert versions[1].changes.documents_added == 1
    assert "documents added=1 removed=0" in stack.logs(run)


def test_multimodal_rows_are_packed_audited_shown_and_read_in_a_forked_worker(stack):
    job = pack_job(stack.root / "shapes", epochs=2)
    job = job.model_copy(update={"store": "s3://megapack/shapes"})
    run = stack.start_flow("pack-multimodal", {"pack": job.model_dump(mode="json")})
    rows = "s3://megapack/shapes/datasets/shapes"
    assert stack.wait(run)["type"] == "COMPLETED", stack.logs(run)
    names = ("audit", "pack", "preflight", "report")
    assert stack.task_runs(run) == [(f"{name}-multimodal", "Completed") for name in names]
    assert "rejected group=understanding reason=missing_image samples=2 first: " in stack.logs(run)
    query = {"artifacts": {"flow_run_id": {"any_": [run]}, "key": {"any_": ["multimodal-rows"]}}}
    (shown,) = stack.call("artifacts/filter", query)
    assert shown["data"].count("data:image/png;base64,") == 3
    assert pack_multimodal(job).reused
    data = StoredMultimodalDataset(rows)
    plain = [batch.samples for batch in data]
    # What has read already is forked, and reads on over a connection of its own.
    loaded = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert [batch.samples for batch in loaded] == plain
    assert len(plain) == open_multimodal(rows).num_rows > 6


def address_of(stack):
    """Address of the training job: the same in every store, for it follows from content."""
    keys = open_location("s3://megapack/first/checkpoints").list_keys("")
    return keys[0].key.split("/")[0]


def strip(metric):
    """A metric without what only says where the run stood."""
    return {name: value for name, value in metric.items() if name not in {"step_s"}}
