"""Extractions killed at any moment, stores that fail, and stores that are slow."""

import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from megapack.jobs.addresses import extract_address
from megapack.jobs.extract import PayloadChoice
from megapack.records.payload import PayloadDtype, PayloadKind
from megapack.records.refs import FolderRef
from megapack.steps.hugging_face.folder import open_folder
from megapack.store.location import open_location
from megapack.store.payload_reader import open_payloads
from megapack.store.retention import collect
from megapack.store.shard_log import SHARD_PREFIX, ShardLog
from megapack.store.versions import latest_version, read_version
from tests.support.extraction_run import extract_on_rank
from tests.support.hf_folder import write_folder
from tests.support.ranks import RankFailure
from tests.support.tiny_dataset import extract_job, layout, make_dataset, make_rows

pytestmark = pytest.mark.distributed
SEED = int(os.environ.get("MEGAPACK_MOMENT_SEED", "20261130"))
CHOICE = PayloadChoice(top_k=5, hidden=PayloadDtype.BF16)
SHARDS = 5


@pytest.fixture(scope="module")
def job_of(tmp_path_factory):
    """Jobs of ten rows in five shards, by output."""
    folder = tmp_path_factory.mktemp("inputs")
    rows = [
        replace(row, sources=("even", "odd", "even", "odd")[: row.layout.num_segments])
        for row in make_rows(10, seed=1)
    ]
    dataset = make_dataset(folder / "data", rows)
    model = open_folder(str(write_folder(folder / "teacher")))
    teacher = FolderRef(uri=str(model.path), digest=model.digest())

    def make(output, **changes):
        settings = {"payload": CHOICE, "shard_rows": 2, "parallel": layout(dp=2), **changes}
        job = extract_job(dataset, teacher, output, **settings)
        return job.model_copy(update={"model": model.model})

    return make


def run(ranks, function, job, scratch, **arguments):
    return ranks.run(
        function,
        world_size=job.settings.parallel.sizes().world_size,
        job=job.model_dump_json(),
        scratch=str(scratch),
        **arguments,
    )


def recorded(job):
    """Shards that a run which goes on would skip."""
    return ShardLog(open_location(job.output), extract_address(job)).done()


def contents(job):
    """What stands below the output, but for what says when it was made."""
    keys = {one.key for one in open_location(job.output).list_keys("")}
    return {key for key in keys if not key.startswith(("addresses/", "latest"))}


@pytest.fixture(scope="module")
def whole(ranks, job_of, tmp_path_factory):
    """A run that nobody disturbed, and the events of each rank in it."""
    folder = tmp_path_factory.mktemp("whole")
    job = job_of(folder / "out")
    seen = run(ranks, extract_on_rank, job, folder / "scratch")
    assert seen[0].metrics[-1]["total_shards"] == SHARDS
    return job, [one.events for one in seen]


@pytest.mark.parametrize("number", range(3))
def test_extraction_killed_at_any_event_goes_on_to_the_same_version(
    ranks, job_of, whole, tmp_path, number
):
    undisturbed, events = whole
    draw = random.Random(f"{SEED}-{number}")
    at_rank = draw.randrange(2)
    kill_at = draw.randrange(events[at_rank])
    print(f"seed {SEED}, rank {at_rank} at event {kill_at}")  # noqa: T201 - to draw it again
    job = job_of(tmp_path / "out")
    with pytest.raises(RankFailure, match="died without an answer"):
        run(ranks, extract_on_rank, job, tmp_path / "1", kill_at=kill_at, at_rank=at_rank)
    made, kept = latest_version(job.output), recorded(job)
    again = run(ranks, extract_on_rank, job, tmp_path / "2")[0].metrics
    expected = read_version(undisturbed.output)
    assert read_version(job.output).manifest.digest == expected.manifest.digest
    if made == 0:
        # What was recorded is not done again, and nothing of the killed run is left over.
        assert again[0]["shards"] == len(kept)
        assert contents(job) == contents(undisturbed)
    assert collect(job.output, min_age_s=0.0) == 0
    assert not open_location(job.output).list_keys(SHARD_PREFIX)


def fail_third_shard(job: str, scratch: str) -> None:
    from megapack.engine import shard_writer
    from megapack.errors import StoreError

    ordinary = shard_writer.write_payload_parts
    calls = []

    def write(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3:
            raise StoreError("the disk of the store is full")
        return ordinary(*arguments, **options)

    shard_writer.write_payload_parts = write
    extract_on_rank(job, scratch)


def test_extraction_stops_on_every_rank_with_the_error_of_an_upload(ranks, job_of, tmp_path):
    job = job_of(tmp_path / "out", parallel=layout(tp=2))
    with pytest.raises(RankFailure) as caught:
        run(ranks, fail_third_shard, job, tmp_path / "1")
    said = str(caught.value)
    assert "StoreError: the disk of the store is full" in said
    assert "StoreError: on rank 0: the disk of the store is full" in said
    assert sorted(recorded(job)) == [0, 1]
    assert latest_version(job.output) == 0
    again = run(ranks, extract_on_rank, job, tmp_path / "2")[0].metrics
    assert again[0]["shards"] == 2


def write_slowly(job: str, scratch: str) -> tuple[list[str], dict]:
    """What happened while every write outlasted the next shard's forward; the last metrics."""
    import threading

    from megapack.engine import extract, shard_writer

    happened: list[str] = []
    begun = threading.Semaphore(0)
    ordinary, forward = shard_writer.write_payload_parts, extract.run_schedule

    def write(*arguments, **options):
        happened.append("write")
        # The last shard has no other behind it.
        begun.acquire(timeout=10.0 if happened.count("write") < 3 else 0.0)
        time.sleep(0.3)
        parts = ordinary(*arguments, **options)
        happened.append("written")
        return parts

    def run_schedule(*arguments):
        happened.append("forward")
        if happened.count("forward") > 1:
            begun.release()
        return forward(*arguments)

    shard_writer.write_payload_parts, extract.run_schedule = write, run_schedule
    seen = extract_on_rank(job, scratch)
    return happened, seen.metrics[-1]


def test_forwards_wait_for_a_slow_store_with_one_shard_in_hand(ranks, job_of, tmp_path):
    job = job_of(tmp_path / "out", parallel=layout(), sources=("even",), shard_rows=4)
    ((order, last),) = run(ranks, write_slowly, job, tmp_path / "1")
    # Three shards: one is computed while one is written.
    assert order == [
        *("forward", "write"),
        *("forward", "written", "write"),
        *("forward", "written", "write", "written"),
    ]
    assert last["write_wait_s"] > 0.3
    made = open_payloads(job.output)
    names = made.index()["document_id"].to_list()
    assert names == [name for row in make_rows(10, seed=1) for name in row.document_ids[::2]]
    for kind in (PayloadKind.TOPK, PayloadKind.HIDDEN):
        assert [one.document_id for one in made.payloads(kind)] == names


def overtaken(job: str, scratch: str) -> None:
    """A run beside which another run of the same job begins later and ends earlier."""
    from megapack.engine import extract

    publish = extract.publish_payload

    def after_the_other(parsed, info, chunks, context, extracted):
        extract.publish_payload = publish
        extract.run_extraction(parsed, context, Path(scratch))
        return publish(parsed, info, chunks, context, extracted)

    extract.publish_payload = after_the_other
    extract_on_rank(job, scratch)


def test_two_runs_of_one_job_commit_one_version(ranks, job_of, tmp_path):
    job = job_of(tmp_path / "out", parallel=layout())
    run(ranks, overtaken, job, tmp_path / "1")
    assert latest_version(job.output) == 1
    assert not open_location(job.output).list_keys(SHARD_PREFIX)
