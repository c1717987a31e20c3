"""Steps that would damage the model: named, and stopped or skipped before any update."""

import re

import numpy as np
import pytest

from megapack.jobs.addresses import train_address
from megapack.jobs.train import GuardJob, NotFinitePolicy, OptimizerJob, SpikePolicy
from megapack.records.packed_row import PackedRow
from megapack.store.versions import find_address
from tests.support.ranks import RankFailure
from tests.support.rows import VOCAB
from tests.support.tiny_dataset import layout, make_dataset, make_rows, train_job
from tests.support.training_run import curve, train_on_rank

pytestmark = pytest.mark.distributed
POISON = VOCAB - 1
POISONED_ROW, POISONED_DOCUMENT = 2, 1


def with_poison(rows):
    """One document alone holds the token whose embedding is NaN, at its first position."""
    clean = [
        PackedRow(
            tokens=np.where(row.tokens == POISON, POISON - 1, row.tokens),
            target_runs=row.target_runs,
            layout=row.layout,
            document_ids=row.document_ids,
        )
        for row in rows
    ]
    row = clean[POISONED_ROW]
    tokens = row.tokens.copy()
    tokens[row.layout.slot_starts[POISONED_DOCUMENT]] = POISON
    clean[POISONED_ROW] = PackedRow(
        tokens=tokens,
        target_runs=row.target_runs,
        layout=row.layout,
        document_ids=row.document_ids,
    )
    return clean


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    rows = with_poison(make_rows(8, seed=1))
    return make_dataset(tmp_path_factory.mktemp("dataset"), rows), rows


def train_with_poison(job: str, scratch: str, value: float):
    """A token's embedding is not finite from the start."""
    import torch

    from megapack.engine import run as run_module
    from megapack.engine import train as train_module

    ordinary = run_module.build_run

    def build_run(*arguments):
        run = ordinary(*arguments)
        for chunk in run.bare_chunks:
            weights = dict(chunk.named_parameters())
            name = "embedding.word_embeddings.weight"
            if name in weights:
                with torch.no_grad():
                    place = POISON - chunk.embedding.word_embeddings.vocab_start_index
                    if 0 <= place < weights[name].shape[0]:
                        weights[name][place] = value
        return run

    train_module.build_run = build_run
    return train_on_rank(job, scratch)


def run_poisoned(ranks, job, scratch):
    return ranks.run(
        train_with_poison,
        world_size=job.settings.parallel.sizes().world_size,
        job=job.model_dump_json(),
        scratch=str(scratch),
        value=float("nan"),
    )[0]


@pytest.mark.parametrize("sizes", [{"dp": 2}, {"tp": 2}, {"cp": 2}, {"pp": 2}])
def test_a_loss_that_is_not_finite_names_the_document_at_any_layout(
    ranks, poisoned, tmp_path, sizes
):
    dataset, rows = poisoned
    # One step holds all rows, so that every layout meets the document in its first step.
    job = train_job(dataset, tmp_path / "out", parallel=layout(**sizes), global_batch_rows=8)
    with pytest.raises(RankFailure) as caught:
        run_poisoned(ranks, job, tmp_path / "scratch")
    guilty = rows[POISONED_ROW].document_ids[POISONED_DOCUMENT]
    told = re.findall(r"GuardError: step 1 .*", str(caught.value))
    assert len(told) == 2
    for line in told:
        assert "expected a finite loss, found nan. It comes from: document" in line
        assert f"document {guilty} in row {POISONED_ROW} (loss nan). Nothing was updated" in line
        assert line.count("document ") == 1
    assert find_address(job.output, train_address(job)) is None


def test_steps_that_are_not_finite_are_skipped_by_all_ranks_and_the_others_learn(
    ranks, poisoned, tmp_path
):
    dataset, _ = poisoned
    guard = GuardJob(on_not_finite=NotFinitePolicy.SKIP)
    job = train_job(dataset, tmp_path / "out", parallel=layout(dp=2), guard=guard)
    metrics = run_poisoned(ranks, job, tmp_path / "scratch")
    skipped = curve(metrics, "skipped", "reason")
    # Two steps are an epoch; the row is met once in each.
    assert list(skipped.values()) == ["loss_not_finite"] * 3
    losses = curve(metrics)
    assert len(losses) == 3
    assert losses[max(losses)] < losses[min(losses)]
    assert find_address(job.output, train_address(job)).manifest.counts["skipped_steps"] == 3


def test_a_gradient_that_is_not_finite_names_its_rows_before_any_update(ranks, tmp_path):
    dataset = make_dataset(tmp_path / "data", make_rows(4, seed=3))
    job = train_job(dataset, tmp_path / "out", parallel=layout(dp=2))
    with pytest.raises(RankFailure) as caught:
        ranks.run(
            train_with_a_steep_head,
            world_size=2,
            job=job.model_dump_json(),
            scratch=str(tmp_path / "scratch"),
        )
    told = re.findall(r"GuardError: step 1 .*", str(caught.value))
    assert len(told) == 2
    for line in told:
        assert re.search(r"expected a finite gradient norm, found (inf|nan) at loss \d", line)
        assert [int(row) for row in re.findall(r"row (\d) \(documents", line)] == [0, 1, 2, 3]


def train_with_a_steep_head(job: str, scratch: str):
    """Finite losses whose gradient overflows: a steep LM head behind a tiny final norm."""
    import torch

    from megapack.engine import run as run_module
    from megapack.engine import train as train_module

    ordinary = run_module.build_run

    def build_run(*arguments):
        run = ordinary(*arguments)
        for chunk in run.bare_chunks:
            weights = dict(chunk.named_parameters())
            with torch.no_grad():
                weights["decoder.final_layernorm.weight"].mul_(1e-30)
                weights["output_layer.weight"].mul_(1e30)
        return run

    train_module.build_run = build_run
    return train_on_rank(job, scratch)


@pytest.mark.parametrize("policy", [SpikePolicy.SKIP, SpikePolicy.STOP])
def test_a_spike_is_judged_before_the_update_and_its_documents_are_named(ranks, tmp_path, policy):
    dataset = make_dataset(tmp_path / "data", make_rows(8, seed=1))
    # So much is changed in a step that losses rise at times, and the limit is tight.
    guard = GuardJob(
        on_spike=policy, window=2, least_losses=2, spike_deviations=1e-3, most_skipped_in_row=9
    )
    job = train_job(
        dataset, tmp_path / "out", guard=guard, optimizer=OptimizerJob(lr=0.1, min_lr=0.1)
    )

    def go():
        return ranks.run(
            train_on_rank, job=job.model_dump_json(), scratch=str(tmp_path / "scratch")
        )[0]

    if policy is SpikePolicy.STOP:
        with pytest.raises(RankFailure, match=r"GuardError: step \d .*expected a loss of at most"):
            go()
        return
    metrics = go()
    spikes = [metric for metric in metrics if metric.get("fault") == "loss_spike"]
    assert spikes
    assert all(metric["kind"] == "skipped" and metric["loss"] > 0 for metric in spikes)
