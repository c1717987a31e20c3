import pytest

from megapack.errors import ConfigError, ContractError, RankError, StoppedError, StoreError
from megapack.jobs.addresses import train_address
from megapack.jobs.train import OptimizerJob
from megapack.layout.granularity import Granularity
from megapack.steps.tables import usable_version
from megapack.steps.train import check_train_job, train
from megapack.store.files import upload_files
from megapack.store.location import open_location
from megapack.store.manifest import Contents
from megapack.store.versions import commit
from tests.support.rows import make_row
from tests.support.tiny_dataset import layout, make_dataset, make_rows, train_job


@pytest.fixture
def dataset(tmp_path):
    return make_dataset(tmp_path / "data", make_rows(3, seed=1))


def never(command, *, on_line, on_metric):
    raise AssertionError(f"started {command.module}")


def run(job, launcher=never):
    return train(job, on_line=lambda *_: None, on_metric=lambda _: None, launcher=launcher)


def commit_checkpoint(job, folder, *, step):
    """A version as a run commits it, with one file."""
    folder.mkdir(exist_ok=True)
    (folder / "shard").write_bytes(f"step {step}".encode())
    location = open_location(job.output)
    contents = Contents(
        schema_id="megapack.checkpoint/1",
        kind="checkpoint",
        parts=upload_files(location, folder),
        address=train_address(job),
        counts={"step": step, "consumed_rows": 4 * step, "skipped_steps": 0},
        settings={"job": job.model_dump(mode="json")},
    )
    return commit(location, contents.manifest())


def test_train_returns_a_finished_checkpoint_without_starting_anything(dataset, tmp_path):
    job = train_job(dataset, tmp_path / "out")
    committed = commit_checkpoint(job, tmp_path / "files", step=6)
    ref = run(job)
    assert ref == committed.checkpoint_ref(reused=True)
    assert (ref.step, ref.consumed_rows, ref.reused) == (6, 24, True)


def test_train_goes_on_from_an_unfinished_checkpoint_and_names_a_run_that_did_not(
    dataset, tmp_path
):
    job = train_job(dataset, tmp_path / "out")
    commit_checkpoint(job, tmp_path / "files", step=4)
    commands = []
    with pytest.raises(
        ContractError, match=r"expected a checkpoint of step 6.*found one of step 4"
    ):
        run(job, launcher=lambda command, **_: commands.append(command))
    assert commands[0].arguments[0] == "train"
    assert commands[0].num_ranks == 1


def test_train_starts_again_when_an_object_of_the_checkpoint_is_gone(dataset, tmp_path):
    job = train_job(dataset, tmp_path / "out")
    committed = commit_checkpoint(job, tmp_path / "files", step=6)
    location = open_location(job.output)
    location.delete(committed.manifest.parts[0].key)
    assert usable_version(location, train_address(job)) is None
    with pytest.raises(AssertionError, match=r"started megapack\.engine\.worker"):
        run(job)


@pytest.mark.parametrize(("kind", "goes_on"), [(RankError, True), (StoppedError, False)])
def test_train_says_that_the_same_job_goes_on_after_a_rank_died(dataset, tmp_path, kind, goes_on):
    def dying(command, *, on_line, on_metric):
        raise kind("rank 1 ended.", rank=1, exit_code=-9, tail=("step 3",))

    with pytest.raises(kind, match=r"^rank 1 ended\.") as caught:
        run(train_job(dataset, tmp_path / "out"), launcher=dying)
    error = caught.value
    assert (type(error), error.rank, error.exit_code, error.tail) == (kind, 1, -9, ("step 3",))
    again = f"Run the same job again: it goes on from the newest checkpoint in {tmp_path / 'out'}"
    assert (again in str(error)) is goes_on


def test_address_leaves_out_layout_and_places_but_not_the_seed(dataset, tmp_path):
    address = train_address(train_job(dataset, tmp_path / "a"))
    assert address == train_address(train_job(dataset, tmp_path / "b", parallel=layout(cp=2)))
    assert address == train_address(train_job(dataset, tmp_path / "b", checkpoint_every=1))
    assert address != train_address(train_job(dataset, tmp_path / "a", seed=6))


def test_train_refuses_multiples_that_do_not_serve_the_layout(dataset, tmp_path):
    job = train_job(dataset, tmp_path / "out", parallel=layout(cp=8))
    with pytest.raises(ConfigError, match=r"needs multiples of 16 \(segment\).*multiples of 8"):
        run(job)
    assert not (tmp_path / "out").exists()


def test_train_takes_rows_whose_length_serves_and_names_the_flags_where_it_does_not(tmp_path):
    rows = make_rows(3, seed=1, granularity=Granularity(segment=1, row=1))
    data = make_dataset(tmp_path / "data", rows)
    halves = layout(tp=2).model_copy(update={"sequence_parallel": True})
    check_train_job(train_job(data, tmp_path / "out", parallel=halves))
    quarters = halves.model_copy(update={"context_parallel_size": 2})
    flags = "_parallel_size=2 --set pack_for."
    names = f"tensor_model{flags}context{flags}sequence_parallel=true"
    with pytest.raises(ConfigError, match=rf"have 96 positions. Pack again with --set .*{names},"):
        check_train_job(train_job(data, tmp_path / "out", parallel=quarters))


def test_train_refuses_an_empty_training_split(tmp_path):
    rows = make_rows(2, seed=1)
    empty = make_dataset(tmp_path / "data", rows[:1])
    job = train_job(empty, tmp_path / "out")
    location = open_location(empty.uri)
    manifest = Contents(
        schema_id="megapack.packed_rows/2",
        kind="dataset",
        parts=(),
        counts={"num_rows": 0, "num_real_tokens": 0, "num_target_tokens": 0},
        packed=_packed(location),
    ).manifest()
    ref = commit(location, manifest).dataset_ref()
    with pytest.raises(ConfigError, match="expected rows in the train split, found none"):
        run(job.model_copy(update={"dataset": ref}))


def _packed(location):
    from megapack.store.versions import read_version

    return read_version(location).manifest.packed


def test_train_refuses_a_dataset_that_was_replaced(dataset, tmp_path):
    other = dataset.model_copy(update={"digest": "0" * 64})
    with pytest.raises(StoreError, match="expected content 0000"):
        run(train_job(other, tmp_path / "out"))


def test_train_refuses_a_missing_dataset(dataset, tmp_path):
    with pytest.raises(ConfigError, match="expected version 7"):
        run(train_job(dataset.model_copy(update={"version": 7}), tmp_path / "out"))


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (OptimizerJob(warmup_steps=6), r"warmup_steps = 6, expected fewer than.*steps = 6"),
        (OptimizerJob(lr=1e-5, min_lr=1e-4), r"min_lr = 0\.0001, expected at most lr = 1e-05"),
    ],
)
def test_train_refuses_a_schedule_that_contradicts_itself(dataset, tmp_path, optimizer, message):
    with pytest.raises(ConfigError, match=message):
        check_train_job(train_job(dataset, tmp_path / "out", optimizer=optimizer))


def test_train_refuses_the_store_of_another_job(dataset, tmp_path):
    there = {"seed": 1, "checkpoint_every": 1, "optimizer": OptimizerJob(lr=0.5)}
    commit_checkpoint(train_job(dataset, tmp_path / "out", **there), tmp_path / "files", step=6)
    here = {"seed": 2, "optimizer": OptimizerJob(lr=0.25)}
    with pytest.raises(ConfigError, match=r"an empty folder or one with results of this") as caught:
        run(train_job(dataset, tmp_path / "out", **here))
    assert "(there -> in this job: optimizer.lr: 0.5 -> 0.25; seed: 1 -> 2)" in str(caught.value)


def test_train_refuses_an_output_that_cannot_be_written(dataset, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError):
        run(train_job(dataset, tmp_path / "file" / "out"))


@pytest.mark.parametrize(("sizes", "width"), [({}, 21), ({"tp": 2}, 22)])
def test_train_refuses_a_dense_budget_below_the_longest_training_document(tmp_path, sizes, width):
    rows = [make_row([5, 21, 9], seed=1), make_row([7], seed=2)]
    data = make_dataset(tmp_path / "data", rows, [make_row([40], seed=3)])
    parallel = layout(**sizes).model_copy(update={"sequence_parallel": bool(sizes)})
    small = train_job(data, tmp_path / "out", parallel=parallel, dense_token_budget=width - 1)
    with pytest.raises(ConfigError, match=rf"budget = {width - 1}, expected at least {width}.* 21"):
        check_train_job(small)
    check_train_job(train_job(data, tmp_path / "out", parallel=parallel, dense_token_budget=width))


@pytest.mark.parametrize(("batch", "warned"), [(3, False), (4, True)])
def test_train_warns_of_a_step_that_is_larger_than_the_training_split(
    dataset, tmp_path, caplog, batch, warned
):
    check_train_job(train_job(dataset, tmp_path / "out", global_batch_rows=batch))
    text = "global_batch_rows = 4 is more than the 3 training rows of"
    assert (text in caplog.text) is warned
