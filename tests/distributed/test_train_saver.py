"""Saving while training goes on: copies, order, failures, best and newest."""

from pathlib import Path

import pytest

from megapack.jobs.addresses import train_address
from megapack.jobs.train import OptimizerJob, Saving
from megapack.steps.best import best_checkpoint
from megapack.store.location import open_location
from megapack.store.retention import living_versions
from megapack.store.versions import find_address
from tests.support.ranks import RankFailure
from tests.support.tiny_dataset import layout, make_dataset, make_rows, train_job
from tests.support.training_run import curve, train_on_rank

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset")
    return make_dataset(folder, make_rows(10, seed=1), make_rows(3, seed=2))


def run(ranks, job, scratch):
    return ranks.run(
        train_on_rank,
        world_size=job.settings.parallel.sizes().world_size,
        job=job.model_dump_json(),
        scratch=str(scratch),
    )[0]


def snapshot_and_update(*, folder: str, distributed: bool):
    """Values at a snapshot, and those read back from files written after an update."""
    import torch
    import torch.distributed as dist

    from megapack.engine.sharded_state import TrainState, load_state, take_snapshot
    from megapack.jobs.train import OptimizerJob
    from megapack.layout.granularity import ParallelSizes
    from megapack.model.optimizer import build_optimizer, build_scheduler, parts
    from tests.support.tiny_training import start

    job = OptimizerJob(distributed=distributed)

    def build():
        context, _, wrapped = start(
            ParallelSizes(dp=2), dtype=torch.float32, distributed_optimizer=distributed
        )
        optimizer = build_optimizer(wrapped, job, context=context)
        scheduler = build_scheduler(optimizer, job, total_steps=9)
        return TrainState(chunks=wrapped, optimizer=optimizer, scheduler=scheduler, context=context)

    def values(state):
        tensors = [p.detach().clone() for p in state.chunks[0].parameters()]
        for part in parts(state.optimizer):
            for moments in part.optimizer.state.values():
                tensors += [moments["exp_avg"].clone(), moments["exp_avg_sq"].clone()]
        return tensors

    def update(state):
        for parameter in state.chunks[0].parameters():
            parameter.main_grad.fill_(0.5)
        state.optimizer.step()

    state = build()
    update(state)
    before = values(state)
    target = Path(folder)
    if dist.get_rank() == 0:
        target.mkdir()
    dist.barrier()
    snapshot = take_snapshot(state, target)
    update(state)
    after = values(state)
    snapshot.write()
    dist.barrier()
    snapshot.finalize()
    state.context.destroy()
    fresh = build()
    load_state(fresh, target, same_layout=True)
    read = values(fresh)
    changed = sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    same = sum(torch.equal(a, b) for a, b in zip(before, read, strict=True))
    return len(before), changed, same


@pytest.mark.parametrize("distributed", [True, False])
def test_a_snapshot_holds_what_was_there_when_it_was_taken(ranks, tmp_path, distributed):
    found = ranks.run(
        snapshot_and_update, world_size=2, folder=str(tmp_path / "files"), distributed=distributed
    )
    for total, changed, same in found:
        assert total > 20
        assert changed == total
        assert same == total


def test_saving_in_the_background_gives_the_same_versions_as_waiting(ranks, dataset, tmp_path):
    jobs = [
        train_job(
            dataset, tmp_path / saving, parallel=layout(dp=2), saving=saving, keep_checkpoints=9
        )
        for saving in (Saving.WAIT, Saving.BACKGROUND)
    ]
    metrics = [run(ranks, job, tmp_path / f"scratch-{job.settings.saving}") for job in jobs]
    waited, background = (living_versions(open_location(job.output)) for job in jobs)
    assert [one.count("step") for one in waited.values()] == [2, 4, 6]
    assert [one.digest for one in background.values()] == [one.digest for one in waited.values()]
    for of_run in metrics:
        saves = [metric for metric in of_run if metric["kind"] == "checkpoint"]
        assert [(one["step"], one["version"]) for one in saves] == [(2, 1), (4, 2), (6, 3)]
        assert all(one["held_s"] > 0 and one["upload_s"] > 0 for one in saves)
    assert not list((tmp_path / "scratch-wait" / "checkpoints").iterdir())
    assert not list((tmp_path / "scratch-background" / "checkpoints").iterdir())


def with_a_failing_store(job: str, scratch: str):
    import torch.distributed as dist

    from megapack.engine import train as train_module
    from megapack.engine.checkpoint import CheckpointStore
    from megapack.errors import StoreError

    ordinary = CheckpointStore.upload
    step = train_module.train_step
    steps = []

    def upload(store, folder, names):
        if dist.get_rank() == 1 and folder.name == "step-00000002":
            raise StoreError("the bucket is gone")
        return ordinary(store, folder, names)

    def train_step(run, progress, planned):
        steps.append(progress.step)
        return step(run, progress, planned)

    CheckpointStore.upload = upload
    train_module.train_step = train_step
    try:
        train_on_rank(job, scratch)
    except StoreError as error:
        return str(error), steps
    return None


def test_a_save_that_fails_on_one_rank_ends_all_at_the_next_step(ranks, dataset, tmp_path):
    job = train_job(
        dataset,
        tmp_path / "out",
        parallel=layout(dp=2),
        saving=Saving.BACKGROUND,
        checkpoint_every=2,
    )
    found = ranks.run(
        with_a_failing_store, world_size=2, job=job.model_dump_json(), scratch=str(tmp_path / "run")
    )
    texts = [text for text, _ in found]
    assert texts == ["on rank 1: the bucket is gone", "the bucket is gone"]
    assert found[0][1] == found[1][1]
    # At the next look, at the latest before the next save.
    assert found[0][1][-1] in (1, 2, 3)
    assert find_address(job.output, train_address(job)) is None


def test_best_and_newest_checkpoints_stay_and_are_named(ranks, dataset, tmp_path):
    # So high a rate that the validation loss rises after a few steps.
    job = train_job(
        dataset,
        tmp_path / "out",
        steps=8,
        optimizer=OptimizerJob(lr=0.03, min_lr=0.03),
        checkpoint_every=1,
        evaluate_every=1,
        keep_checkpoints=1,
    )
    metrics = run(ranks, job, tmp_path / "scratch")
    losses = {step: loss for step, loss in curve(metrics, "evaluation").items() if step}
    best = min(losses, key=losses.get)
    assert best < 7
    living = living_versions(open_location(job.output))
    assert sorted(one.count("step") for one in living.values()) == [best, 8]
    newest = living[max(living)]
    assert newest.settings["best"] == {"step": best, "loss": losses[best]}
    assert newest.settings["validation_loss"] == losses[8]
    found = best_checkpoint(job)
    assert (found.step, found.digest) == (best, living[min(living)].digest)


def failing_in_a_step(job: str, scratch: str):
    import torch.distributed as dist

    from megapack.engine import train as train_module

    step = train_module.train_step

    def train_step(run, progress, planned):
        if progress.step == 1 and dist.get_rank() == 1:
            raise OSError("broken")
        return step(run, progress, planned)

    train_module.train_step = train_step
    train_on_rank(job, scratch)


def test_a_rank_that_fails_in_a_step_lets_no_other_wait(ranks, dataset, tmp_path):
    job = train_job(dataset, tmp_path / "out", parallel=layout(dp=2), saving=Saving.BACKGROUND)
    arguments = {"job": job.model_dump_json(), "scratch": str(tmp_path / "run")}
    with pytest.raises(RankFailure) as caught:
        ranks.run(failing_in_a_step, world_size=2, **arguments)
    text = str(caught.value)
    assert "OSError: broken" in text
    # The other has an error of its own: it was not ended from outside.
    assert "ended with the others" not in text
    assert "no answer in" not in text
