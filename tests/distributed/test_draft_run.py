"""A training job with a draft: metrics, checkpoints, a kill, and what reads the checkpoint then."""

import shutil

import pytest

from megapack.jobs.addresses import train_address
from megapack.jobs.draft import DraftJob
from megapack.store.versions import find_address
from tests.support.ranks import RankFailure
from tests.support.rows import VOCAB
from tests.support.tiny_dataset import MODEL, layout, make_dataset, make_rows, train_job
from tests.support.training_run import curve, train_on_rank

pytestmark = pytest.mark.distributed

DRAFT = DraftJob(depth=2, lr=3e-3)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("data"), make_rows(10, seed=1))


def run(ranks, job, scratch, *, kill_at=None):
    return ranks.run(
        train_on_rank,
        world_size=job.settings.parallel.sizes().world_size,
        job=job.model_dump_json(),
        scratch=str(scratch),
        moment=kill_at,
    )[0]


@pytest.fixture(scope="module")
def whole(ranks, dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    job = train_job(dataset, folder / "out", draft=DRAFT)
    return job, run(ranks, job, folder / "scratch")


@pytest.fixture(scope="module")
def plain(ranks, dataset, tmp_path_factory):
    """The same run without a draft."""
    folder = tmp_path_factory.mktemp("plain")
    job = train_job(dataset, folder / "out")
    return job, run(ranks, job, folder / "scratch")


def test_policy_of_a_run_learns_as_without_a_draft_and_the_draft_learns(whole, plain):
    assert train_address(plain[0]) != train_address(whole[0])
    for name in ("loss", "grad_norm", "lr"):
        assert curve(whole[1], name=name) == curve(plain[1], name=name)
    losses = curve(whole[1], name="draft_loss")
    assert losses[6] < losses[1]
    for name in ("draft_top1_agreement", "draft_2_loss", "draft_2_top1_agreement"):
        assert len(curve(whole[1], name=name)) == len(losses)
    assert all(norm > 0 for norm in curve(whole[1], name="draft_grad_norm").values())


def test_run_with_a_draft_that_was_killed_goes_on_and_at_another_layout_too(
    ranks, dataset, whole, tmp_path
):
    job, other = (train_job(dataset, tmp_path / name, draft=DRAFT) for name in ("out", "other"))
    with pytest.raises(RankFailure, match="died without an answer"):
        run(ranks, job, tmp_path / "first", kill_at=3)
    shutil.copytree(job.output, other.output)
    resumed = run(ranks, job, tmp_path / "second")
    assert curve(resumed, name="draft_loss") == curve(whole[1], name="draft_loss")
    ends = [find_address(one.output, train_address(one)).manifest for one in (job, whole[0])]
    assert ends[0].parts == ends[1].parts
    other = train_job(dataset, tmp_path / "other", draft=DRAFT, parallel=layout(tp=2))
    elsewhere = run(ranks, other, tmp_path / "third")
    for name in ("loss", "draft_loss", "draft_2_loss"):
        expected = curve(whole[1], name=name)
        assert curve(elsewhere, name=name) == pytest.approx(expected, rel=2e-5)


def read_by(*, output: str, scratch: str, drafts: list[DraftJob | None]) -> list[str]:
    """What models without and with a draft say when they read a checkpoint."""
    import logging
    from pathlib import Path

    from megapack.engine.checkpoint import load_weights
    from megapack.errors import ConfigError
    from megapack.layout.granularity import ParallelSizes
    from megapack.model.build import build_model
    from megapack.model.draft import attach_draft
    from megapack.parallel.context import ParallelContext
    from megapack.store.location import open_location
    from megapack.store.versions import latest_version, read_version

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("megapack.engine.draft_state").addHandler(handler)
    context = ParallelContext.initialize(ParallelSizes(), seed=7)
    ref = read_version(output, latest_version(open_location(output))).checkpoint_ref()
    for draft in drafts:
        chunks = build_model(MODEL, context=context, vocab_size=VOCAB, seed=1)
        if draft is not None:
            attach_draft(chunks, draft, model=MODEL, context=context, seed=3)
        try:
            load_weights(ref, chunks, context, Path(scratch))
        except ConfigError as error:
            said.append(str(error))
    return said


def test_policy_is_read_without_its_draft_and_no_draft_out_of_nothing(
    ranks, whole, plain, tmp_path
):
    answers = [
        ranks.run(read_by, output=job.output, scratch=str(tmp_path / "files"), drafts=[None, DRAFT])
        for job, _ in (whole, plain)
    ]
    ((left_out,),), ((refused,),) = answers
    assert "holds a draft, which is left out" in left_out
    assert "expected a draft, found the policy alone" in refused
