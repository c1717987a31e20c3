"""Runs told to stop, killed, or killed while they save: the curve is that of a whole run."""

import json
import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from megapack.jobs.addresses import train_address
from megapack.jobs.train import GuardJob, OptimizerJob, Saving, SpikePolicy
from megapack.store.location import open_location
from megapack.store.manifest import Contents
from megapack.store.versions import commit, find_address
from tests.support.ranks import RankFailure
from tests.support.tiny_dataset import MODEL, layout, make_dataset, make_rows, train_job
from tests.support.training_run import curve, train_on_rank

pytestmark = pytest.mark.distributed
STEPS = 6
SEED = int(os.environ.get("MEGAPACK_MOMENT_SEED", "20261130"))
# Tight on purpose: some steps are skipped, so that the guard's memory matters after a resume.
GUARD = GuardJob(
    on_spike=SpikePolicy.SKIP,
    spike_deviations=1e-3,
    window=2,
    least_losses=2,
    most_skipped_in_row=9,
)
# So much is changed in a step that losses rise at times.
FAST = OptimizerJob(lr=0.1, min_lr=0.1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    # Two steps of four rows are one epoch: steps 2 and 4 end one, and have a checkpoint.
    folder = tmp_path_factory.mktemp("dataset")
    return make_dataset(folder, make_rows(8, seed=1), make_rows(3, seed=2))


def job_of(dataset, output, **changes):
    return train_job(
        dataset, output, **{"steps": STEPS, "guard": GUARD, "optimizer": FAST, **changes}
    )


def train_and_note_rows(rows: str, **arguments):
    """As `train_on_rank`; every rank notes steps and numbers of its rows as it takes them."""
    import torch.distributed as dist

    from megapack.engine import train as train_module

    ordinary = train_module.train_step
    notes = Path(rows) / f"rank-{dist.get_rank()}.jsonl"

    def train_step(run, progress, planned):
        with notes.open("a") as file:
            file.write(json.dumps([progress.step, planned.numbers.tolist()]) + "\n")
        return ordinary(run, progress, planned)

    train_module.train_step = train_step
    return train_on_rank(**arguments)


def run(ranks, job, scratch, **arguments):
    scratch.mkdir()
    return ranks.run(
        train_and_note_rows,
        world_size=job.settings.parallel.sizes().world_size,
        rows=str(scratch),
        job=job.model_dump_json(),
        scratch=str(scratch),
        **arguments,
    )[0]


def noted_rows(*scratches):
    """What each of two ranks took, over runs that follow one another."""
    return [
        [
            json.loads(line)
            for scratch in scratches
            for line in (scratch / f"rank-{rank}.jsonl").read_text().splitlines()
        ]
        for rank in (0, 1)
    ]


def committed_step(job):
    found = find_address(job.output, train_address(job))
    return 0 if found is None else found.manifest.count("step")


@pytest.fixture(scope="module")
def whole(ranks, dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    job = job_of(dataset, folder / "out", parallel=layout(dp=2))
    metrics = run(ranks, job, folder / "scratch")
    assert curve(metrics, "skipped", "reason"), "expected the guard to skip a step"
    return metrics, noted_rows(folder / "scratch")


def without_place(metrics):
    """What must not differ: everything but what this process measured."""
    passing = {"step_s", "tokens_per_s", "tokens_per_s_per_rank", "flops_per_s", "mfu"}
    passing |= {"memory_bytes"}
    return [
        {name: value for name, value in metric.items() if name not in passing}
        for metric in metrics
        if metric["kind"] != "checkpoint"
    ]


def moments():
    """Five moments drawn uniformly over the run, kill and request mixed; the seed is printed."""
    draw = random.Random(SEED)
    numbers = [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]
    return [(round(draw.uniform(0, STEPS), 3), number) for number in numbers]


@pytest.mark.parametrize(("moment", "number"), moments(), ids=lambda value: str(value))
def test_a_run_that_ends_at_any_moment_goes_on_to_the_same_curve_to_the_bit(
    ranks, dataset, whole, tmp_path, moment, number
):
    print(f"seed {SEED}, moment {moment}, signal {number}")  # noqa: T201 - to draw it again
    job = job_of(dataset, tmp_path / "out", parallel=layout(dp=2), saving=Saving.BACKGROUND)
    expected = "died without an answer" if number == signal.SIGKILL else "StoppedError: told to"
    last = number == signal.SIGTERM and moment > STEPS - 1
    if last:
        # A request in the last step changes nothing: the run is done and saved.
        run(ranks, job, tmp_path / "first", moment=moment, number=number)
    else:
        with pytest.raises(RankFailure, match=expected):
            run(ranks, job, tmp_path / "first", moment=moment, number=number, at_rank=1)
    if number == signal.SIGTERM:
        assert committed_step(job) == int(moment) + 1
    metrics = run(ranks, job, tmp_path / "second") if not last else None
    assert committed_step(job) == STEPS
    if metrics is not None:
        assert without_place(metrics) == without_place(whole[0])


def killed_in_a_commit(job: str, scratch: str):
    from megapack.engine.checkpoint import CheckpointStore

    ordinary = CheckpointStore.commit

    def commit(store, folder, parts, moment):
        if moment.progress.step == 4:
            store.upload(folder, [".metadata"])
            os.kill(os.getpid(), signal.SIGKILL)
        return ordinary(store, folder, parts, moment)

    CheckpointStore.commit = commit
    return train_on_rank(job, scratch)


def test_a_run_killed_during_a_save_goes_on_from_the_save_before(ranks, dataset, whole, tmp_path):
    job = job_of(dataset, tmp_path / "out", parallel=layout(dp=2))
    (tmp_path / "first").mkdir()
    arguments = {"job": job.model_dump_json(), "scratch": str(tmp_path / "first")}
    with pytest.raises(RankFailure, match="died without an answer"):
        ranks.run(killed_in_a_commit, world_size=2, **arguments)
    assert committed_step(job) == 2
    metrics = run(ranks, job, tmp_path / "second")
    assert without_place(metrics) == without_place(whole[0])


# No spike is judged here: two layouts may round to either side of a tight limit.
OTHER_LAYOUT = {"guard": GuardJob(), "evaluate_every": STEPS, "optimizer": OptimizerJob(lr=1e-2)}


@pytest.fixture(scope="module")
def on_one_rank(ranks, dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    job = job_of(dataset, folder / "out", **OTHER_LAYOUT)
    return curve(run(ranks, job, folder / "scratch"))


@pytest.mark.parametrize(("before", "after"), [({"dp": 2}, {"dp": 1}), ({"tp": 2}, {"pp": 2})])
def test_a_stopped_run_goes_on_at_another_layout_within_rounding(
    ranks, dataset, on_one_rank, tmp_path, before, after
):
    first = job_of(dataset, tmp_path / "out", parallel=layout(**before), **OTHER_LAYOUT)
    with pytest.raises(RankFailure, match="StoppedError"):
        run(ranks, first, tmp_path / "first", moment=2.5, number=signal.SIGTERM)
    assert committed_step(first) == 3
    second = job_of(dataset, tmp_path / "out", parallel=layout(**after), **OTHER_LAYOUT)
    found = curve(run(ranks, second, tmp_path / "second"))
    assert found == pytest.approx(on_one_rank, rel=5e-5)


# Heads of 6 leave the buckets beside the embedding's own with a size that is padded.
TIED = {
    **OTHER_LAYOUT,
    "model": MODEL.model_copy(update={"tie_embeddings": True, "kv_channels": 6, "qkv_bias": True}),
}


@pytest.fixture(scope="module")
def tied(ranks, dataset, tmp_path_factory):
    """The curve of a whole run, and the output of one that was stopped in its third step."""
    folder = tmp_path_factory.mktemp("tied")
    whole = job_of(dataset, folder / "whole", **TIED)
    expected = curve(run(ranks, whole, folder / "undisturbed"))
    first = job_of(dataset, folder / "out", parallel=layout(pp=2), **TIED)
    with pytest.raises(RankFailure, match="StoppedError"):
        run(ranks, first, folder / "first", moment=2.5, number=signal.SIGTERM)
    return expected, folder / "out"


@pytest.mark.parametrize("after", [{"pp": 2}, {"pp": 1}])
def test_a_tied_embedding_behind_a_padded_bucket_goes_on_within_rounding(
    ranks, dataset, tied, tmp_path, after
):
    expected, stopped = tied
    shutil.copytree(stopped, tmp_path / "out")
    second = job_of(dataset, tmp_path / "out", parallel=layout(**after), **TIED)
    assert committed_step(second) == 3
    found = curve(run(ranks, second, tmp_path / "second"))
    assert found == pytest.approx(expected, rel=5e-5)


def test_after_an_epoch_end_the_next_epoch_follows_with_the_rows_not_consumed_yet(
    ranks, dataset, whole, tmp_path
):
    """No epoch is skipped, and rows of three steps that were fetched ahead come again."""
    metrics, rows = whole
    job = job_of(dataset, tmp_path / "out", parallel=layout(dp=2))
    with pytest.raises(RankFailure, match="StoppedError"):
        run(ranks, job, tmp_path / "first", moment=1.9, number=signal.SIGTERM)
    manifest = find_address(job.output, train_address(job)).manifest
    assert (manifest.count("step"), manifest.count("consumed_rows")) == (2, 8)
    found = run(ranks, job, tmp_path / "second")
    epochs = {metric["step"]: metric["epoch"] for metric in found if "epoch" in metric}
    assert epochs == {1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2}
    assert without_place(found) == without_place(metrics)
    assert noted_rows(tmp_path / "first", tmp_path / "second") == rows
    assert [step for step, _ in rows[0]] == list(range(STEPS))


def test_a_checkpoint_without_the_readers_state_is_refused(ranks, dataset, tmp_path):
    """Weights are never restored beside data that starts again."""
    job = job_of(dataset, tmp_path / "out", steps=2, optimizer=OptimizerJob(lr=1e-2))
    run(ranks, job, tmp_path / "first")
    location = open_location(job.output)
    found = find_address(location, train_address(job))
    kept = [part for part in found.manifest.parts if part.name != "progress.json"]
    without = Contents(
        schema_id=found.manifest.schema_id,
        kind=found.manifest.kind,
        parts=kept,
        address=found.manifest.address,
        counts=found.manifest.counts,
        settings=found.manifest.settings,
    )
    commit(location, without.manifest())
    with pytest.raises(RankFailure, match=r"DataError: the checkpoint holds no progress\.json"):
        run(ranks, job, tmp_path / "second")
