"""Training worlds that are killed and go on: same rows, same losses, any layout."""

import pytest

from megapack.jobs.addresses import train_address
from megapack.jobs.train import OptimizerJob
from megapack.records.packed_row import PackedRow
from megapack.store.location import open_location
from megapack.store.versions import find_address, latest_version
from tests.support.ranks import RankFailure
from tests.support.tiny_dataset import layout, make_dataset, make_rows, train_job
from tests.support.training_run import curve, train_on_rank

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("dataset"), make_rows(10, seed=1), make_rows(3, seed=2)
    )


def run(ranks, job, scratch, *, kill_at=None):
    world_size = job.settings.parallel.sizes().world_size
    return ranks.run(
        train_on_rank,
        world_size=world_size,
        job=job.model_dump_json(),
        scratch=str(scratch),
        moment=kill_at,
    )[0]


@pytest.fixture(scope="module")
def whole(ranks, dataset, tmp_path_factory):
    """Metrics of the run on one rank that nobody interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    job = train_job(dataset, folder / "out")
    return job, run(ranks, job, folder / "scratch")


def test_train_writes_steps_evaluations_and_counts(whole):
    _, metrics = whole
    assert sorted(curve(metrics)) == [1, 2, 3, 4, 5, 6]
    assert sorted(curve(metrics, "evaluation")) == [0, 3, 6]
    assert curve(metrics, name="consumed_rows") == {s: 4 * s for s in range(1, 7)}
    assert curve(metrics, name="epoch") == {1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 2}
    assert curve(metrics, name="num_tokens")[1] == 4 * 96
    lr = curve(metrics, name="lr")
    assert (lr[1], lr[2], lr[6]) == (0.5e-2, 1e-2, 1e-3)
    losses = curve(metrics, "evaluation")
    assert losses[6] < losses[0]
    assert all("step_s" in metric for metric in metrics if metric["kind"] == "train")


def test_train_keeps_the_newest_checkpoints_and_counts_in_the_manifest(whole):
    job, _ = whole
    location = open_location(job.output)
    found = find_address(location, train_address(job))
    assert latest_version(location) == found.version == 3
    assert found.manifest.counts == {"step": 6, "consumed_rows": 24, "skipped_steps": 0}
    assert found.manifest.parents == {"dataset": job.dataset.digest}
    named = {part.key for part in found.manifest.parts}
    second = {part.key for part in find_version(location, 2).parts}
    stored = {one.key for one in location.list_keys("parts/")}
    assert stored == named | second


def find_version(location, number):
    from megapack.store.versions import read_version

    return read_version(location, number).manifest


def test_train_resumed_after_a_kill_gives_the_same_losses_to_the_bit(
    ranks, dataset, whole, tmp_path
):
    job = train_job(dataset, tmp_path / "out")
    with pytest.raises(RankFailure, match="died without an answer"):
        run(ranks, job, tmp_path / "first", kill_at=3)
    assert find_address(job.output, train_address(job)).manifest.count("step") == 2
    resumed = run(ranks, job, tmp_path / "second")
    assert "step_s" not in resumed[2]
    for kind, name in (("train", "loss"), ("train", "grad_norm"), ("evaluation", "loss")):
        assert curve(resumed, kind, name) == curve(whole[1], kind, name)
    # Not only the curve: weights, moments and random states are the same files.
    ends = [find_address(one.output, train_address(one)).manifest for one in (job, whole[0])]
    assert ends[0].digest == ends[1].digest
    assert ends[0].parts == ends[1].parts


def test_train_with_context_parallelism_gives_the_same_losses_within_rounding(
    ranks, dataset, whole, tmp_path
):
    job = train_job(dataset, tmp_path / "out", parallel=layout(cp=2), checkpoint_every=6)
    metrics = run(ranks, job, tmp_path / "scratch")
    for kind in ("train", "evaluation"):
        assert curve(metrics, kind) == pytest.approx(curve(whole[1], kind), rel=2e-5)
    counted = curve(whole[1], name="num_target_tokens")
    assert curve(metrics, name="num_target_tokens") == counted


@pytest.mark.parametrize(
    ("sizes", "changes"),
    [
        ({"dp": 2}, {"rows_per_microbatch": 3}),
        ({"pp": 2}, {"dense_token_budget": 120, "checkpoint_every": 6}),
    ],
    ids=["dp2-three-rows", "pp2-dense"],
)
def test_train_on_other_microbatches_gives_the_same_losses_within_rounding(
    ranks, dataset, whole, tmp_path, sizes, changes
):
    job = train_job(dataset, tmp_path / "out", parallel=layout(**sizes), **changes)
    metrics = run(ranks, job, tmp_path / "scratch")
    assert train_address(job) == train_address(
        train_job(dataset, tmp_path / "out", checkpoint_every=6)
    )
    assert curve(metrics) == pytest.approx(curve(whole[1]), rel=2e-5)
    for name in ("num_target_tokens", "num_real_tokens"):
        assert curve(metrics, name=name) == curve(whole[1], name=name)
    # Dense batches hold what they need; two dp ranks of two rows are completed to three.
    positions = curve(metrics, name="num_tokens")[1]
    assert positions < 4 * 96 if "pp" in sizes else positions == 2 * 3 * 96


@pytest.mark.parametrize(("before", "after"), [({"tp": 2}, {"dp": 2}), ({"cp": 2}, {"tp": 1})])
def test_train_resumed_at_another_layout_goes_on_within_rounding(
    ranks, dataset, whole, tmp_path, before, after
):
    out, seldom = tmp_path / "out", {"checkpoint_every": 4, "evaluate_every": 6}
    first = train_job(dataset, out, parallel=layout(**before), **seldom)
    with pytest.raises(RankFailure):
        run(ranks, first, tmp_path / "first", kill_at=4)
    second = train_job(dataset, out, parallel=layout(**after), **seldom)
    metrics = run(ranks, second, tmp_path / "second")
    expected = curve(whole[1])
    assert curve(metrics) == pytest.approx(expected, rel=5e-5)
    assert curve(metrics, name="lr") == curve(whole[1], name="lr")


def unsupervised(row):
    return PackedRow(
        tokens=row.tokens,
        target_runs=[],
        layout=row.layout,
        document_ids=row.document_ids,
    )


def test_train_skips_and_counts_steps_without_targets_as_if_they_were_not_there(ranks, tmp_path):
    rows = make_rows(6, seed=3)
    mixed = make_dataset(tmp_path / "mixed", [*rows[:4], *map(unsupervised, rows[4:])])
    job = train_job(mixed, tmp_path / "out", global_batch_rows=1)
    metrics = run(ranks, job, tmp_path / "scratch")
    skipped = curve(metrics, "skipped", "num_target_tokens")
    assert list(skipped.values()) == [0, 0]
    assert len(curve(metrics)) == 4
    assert all("loss" not in metric for metric in metrics if metric["kind"] == "skipped")
    manifest = find_address(job.output, train_address(job)).manifest
    assert manifest.counts == {"step": 6, "consumed_rows": 6, "skipped_steps": 2}


def test_train_gives_an_unsupervised_row_no_weight_beside_others(ranks, tmp_path):
    rows = make_rows(3, seed=4)
    alone = make_dataset(tmp_path / "alone", rows)
    beside = make_dataset(tmp_path / "beside", [*rows, unsupervised(rows[0])])
    settings = {"steps": 3, "checkpoint_every": 3}
    one = train_job(alone, tmp_path / "one", global_batch_rows=3, **settings)
    two = train_job(beside, tmp_path / "two", parallel=layout(dp=2), **settings)
    expected = curve(run(ranks, one, tmp_path / "scratch-1"))
    found = curve(run(ranks, two, tmp_path / "scratch-2"))
    assert found == pytest.approx(expected, rel=2e-5)


def test_train_stops_before_the_update_that_would_ruin_the_weights(ranks, dataset, tmp_path):
    wild = OptimizerJob(lr=1e30, clip_grad=0.0)
    job = train_job(dataset, tmp_path / "out", optimizer=wild, checkpoint_every=1)
    # The first update is wild but finite; the gradient after it is not.
    expected = (
        r"step 2 \(epoch 0, rows (\d+, ){3}\d+ of the training split\): expected a finite gradient"
    )
    with pytest.raises(RankFailure, match=expected):
        run(ranks, job, tmp_path / "scratch")
    assert find_address(job.output, train_address(job)).manifest.count("step") == 1
