"""The draft: a plain model's numbers at every layout, and a policy that does not know of it."""

from typing import Any

import numpy as np
import pytest

from megapack.jobs.draft import DraftJob, DraftTraining
from megapack.jobs.model import ModelJob, Recompute
from megapack.jobs.train import OptimizerJob
from megapack.layout.granularity import ParallelSizes
from tests.support.layout_table import model_job
from tests.support.ranks import RankServer
from tests.support.rows import StepOutcome, make_row, replace_token, worst_error

EXACT = 1e-12
ONE = ParallelSizes()
# 64 targets, which float32 divides by exactly (docs/upstream/gradients_by_float32_reciprocal.md);
# documents of one and two positions have nothing to guess.
LENGTHS = [[5, 17, 3, 23], [1, 2, 35]]
ROWS = [make_row(lengths, seed=8 + i, supervised=0.75) for i, lengths in enumerate(LENGTHS)]
LAST = DraftJob()
LAYERS = DraftJob(layers=(1, 2), depth=2)
LAYOUTS = {
    "tp2-sp": ParallelSizes(tp=2, sequence_parallel=True),
    "tp2-cp2": ParallelSizes(tp=2, cp=2),
    "cp2": ParallelSizes(cp=2),
    "dp2": ParallelSizes(dp=2),
}


def build(
    sizes: ParallelSizes,
    job: ModelJob,
    draft: DraftJob | None,
    *,
    dtype: str = "float64",
    sharded: bool = False,
) -> Any:
    """On ranks: context, bare and wrapped chunks."""
    import torch

    from megapack.model.build import build_model, wrap_ddp
    from megapack.model.draft import attach_draft
    from megapack.parallel.context import ParallelContext
    from tests.support.rows import VOCAB

    context = ParallelContext.initialize(sizes, seed=7)
    bare = build_model(
        job, context=context, vocab_size=VOCAB, seed=11, params_dtype=getattr(torch, dtype)
    )
    if draft is not None:
        attach_draft(bare, draft, model=job, context=context, seed=3)
    wrapped = wrap_ddp(bare, context=context, distributed_optimizer=sharded)
    for chunk in wrapped:
        chunk.zero_grad_buffer()
    return context, bare, wrapped


def step(
    *,
    sizes: ParallelSizes,
    job: ModelJob,
    draft: DraftJob | None,
    make: Any = None,
) -> StepOutcome:
    """On ranks: one training step."""
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.outputs.loss import TokenLossHead
    from megapack.outputs.source import LogitReading
    from tests.support.tiny_training import outcome_of, packed_step, whole_parameters

    context, bare, wrapped = build(sizes, job, draft)
    made = (make or packed_step)(ROWS, context)
    head = TokenLossHead(reading=LogitReading(tokens_per_chunk=7))
    result = run_schedule(wrapped, SchedulePlan(step=made, head=head), context)
    gradients = whole_parameters(bare[0], context, tied=job.tie_embeddings)
    context.destroy()
    return outcome_of(result, made, gradients)


def steps(
    *, sizes: ParallelSizes, drafts: list[DraftJob | None], model: dict[str, Any] | None = None
) -> list[StepOutcome]:
    job = model_job("dense", model or {})
    return [step(sizes=sizes, job=job, draft=draft) for draft in drafts]


@pytest.fixture(scope="module")
def one_process(ranks: RankServer) -> list[StepOutcome]:
    """Without a draft, with each kind of draft."""
    return ranks.run(steps, sizes=ONE, drafts=[None, LAST, LAYERS])[0]


def assert_same(got: StepOutcome, expected: StepOutcome) -> None:
    assert got.num_target_tokens == expected.num_target_tokens == 64
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=EXACT)
    assert got.metrics == pytest.approx(expected.metrics, rel=EXACT)
    assert worst_error(got.gradients, expected.gradients) < EXACT


def plain() -> Any:
    import torch

    from tests.support.plain_draft import plain_draft
    from tests.support.tiny_training import whole_parameters

    torch.set_num_threads(1)
    job, found = model_job("dense", {}), []
    for draft in (LAST, LAYERS):
        context, bare, _ = build(ONE, job, draft)
        values = whole_parameters(bare[0], context, attribute="data")
        context.destroy()
        found.append(plain_draft(values, ROWS, job, draft))
    return found


def test_loss_and_gradient_are_those_of_a_plain_model_one_document_at_a_time(
    ranks: RankServer, one_process: list[StepOutcome]
) -> None:
    expected = ranks.run(plain)[0]
    for got, (gradients, metrics) in zip(one_process[1:], expected, strict=True):
        assert got.metrics == pytest.approx(metrics, rel=EXACT)
        assert worst_error(got.gradients, gradients) < EXACT
    assert {"draft_loss", "draft_top1_agreement", "draft_2_loss"} < one_process[2].metrics.keys()


def test_gradients_of_the_policy_are_the_same_bits_with_a_draft_and_without(
    one_process: list[StepOutcome],
) -> None:
    alone, *beside = one_process
    for outcome in beside:
        assert outcome.loss_sum == alone.loss_sum
        assert outcome.metrics["loss"] == alone.metrics["loss"]
        for name, gradient in alone.gradients.items():
            assert np.array_equal(outcome.gradients[name], gradient), name
        assert len(outcome.gradients) > len(alone.gradients)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_step_at_any_layout_is_that_of_one_process(
    ranks: RankServer, one_process: list[StepOutcome], layout: str
) -> None:
    sizes = LAYOUTS[layout]
    found = ranks.run(steps, world_size=sizes.world_size, sizes=sizes, drafts=[LAST, LAYERS])[0]
    for got, expected in zip(found, one_process[1:], strict=True):
        assert_same(got, expected)


def other_batches() -> list[StepOutcome]:
    """One process: both rows in one microbatch, documents in dense batches, full recompute."""
    from functools import partial

    from megapack.batch.iterate import dense_step
    from megapack.layout.granularity import granularity
    from tests.support.tiny_training import packed_step

    def dense(rows: Any, context: Any) -> Any:
        return dense_step(rows, context=context, token_budget=60, granularity=granularity(ONE))

    job, again = model_job("dense", {}), model_job("dense", {"recompute": Recompute.FULL})
    joined = partial(packed_step, rows_per_microbatch=2)
    return [
        step(sizes=ONE, job=job, draft=LAYERS, make=joined),
        step(sizes=ONE, job=job, draft=LAYERS, make=dense),
        step(sizes=ONE, job=again, draft=LAYERS),
    ]


def test_loss_does_not_depend_on_microbatches_or_recompute(
    ranks: RankServer, one_process: list[StepOutcome]
) -> None:
    for got in ranks.run(other_batches)[0]:
        assert_same(got, one_process[2])


def tied_and_experts(*, sizes: ParallelSizes) -> list[StepOutcome]:
    tied = model_job("dense", {"tie_embeddings": True, "vocab_multiple": 13})
    experts = model_job("MoE", {"mtp_num_layers": 1})
    return [step(sizes=sizes, job=job, draft=LAST) for job in (tied, experts)]


def test_draft_of_a_tied_policy_and_of_experts_is_that_of_one_process(ranks: RankServer) -> None:
    expected = ranks.run(tied_and_experts, sizes=ONE)[0]
    found = ranks.run(tied_and_experts, world_size=2, sizes=LAYOUTS["tp2-sp"])[0]
    for got, one in zip(found, expected, strict=True):
        assert_same(got, one)
    assert {"draft_loss", "mtp_1_loss"} < expected[1].metrics.keys()


def guesses_beside_a_changed_token() -> Any:
    """Positions at which a guess changes when one token does, by distance."""
    import torch

    from megapack.batch.thd import to_microbatch
    from megapack.model.forward import ForwardRequest, Need, forward

    context, bare, _ = build(ONE, model_job("dense", {}), LAYERS)
    rows = (ROWS[0], replace_token(ROWS[0], CHANGED))
    outputs = []
    for row in rows:
        request = ForwardRequest(microbatch=to_microbatch(row, context), needs=Need.DRAFT)
        with torch.no_grad():
            outputs.append(forward(bare[0], request).draft.guesses)
    return [(a != b).any(-1).nonzero().flatten().tolist() for a, b in zip(*outputs, strict=True)]


# In the second document, which stands at 8 to 24.
CHANGED = 12


def test_guesses_see_their_own_document_and_the_tokens_that_they_may(ranks: RankServer) -> None:
    for ahead, positions in enumerate(ranks.run(guesses_beside_a_changed_token)[0], start=1):
        assert positions == list(range(CHANGED - ahead, 8 + 17))


def updates(*, sharded: bool) -> Any:
    """Two clipped updates: weights without a draft, beside one, and of a draft alone."""
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.model.optimizer import build_optimizer, build_scheduler
    from megapack.outputs.loss import TokenLossHead
    from tests.support.tiny_training import packed_step, whole_parameters

    job = OptimizerJob(lr=1e-2, min_lr=1e-3, clip_grad=0.5, weight_decay=0.1)
    found = []
    for draft in (None, LAST, DraftJob(lr=1e-3, training=DraftTraining.ALONE)):
        context, bare, wrapped = build(
            ONE, model_job("dense", {}), draft, dtype="float32", sharded=sharded
        )
        before = whole_parameters(bare[0], context, attribute="data")
        rate = None if draft is None else draft.lr
        optimizer = build_optimizer(
            wrapped,
            job.model_copy(update={"distributed": sharded}),
            context=context,
            draft_lr=rate,
        )
        scheduler = build_scheduler(optimizer, job, total_steps=4)
        norms = []
        for _ in range(2):
            wrapped[0].zero_grad_buffer()
            scheduler.step(1)
            plan = SchedulePlan(step=packed_step(ROWS, context), head=TokenLossHead())
            run_schedule(wrapped, plan, context)
            _, norm, _ = optimizer.step()
            norms.append((norm, dict(optimizer.grad_norms_by_group)))
        after = whole_parameters(bare[0], context, attribute="data")
        context.destroy()
        found.append((before, after, norms))
    return found


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_policy_takes_the_same_steps_beside_a_draft_and_none_when_it_trains_alone(
    ranks: RankServer, *, sharded: bool
) -> None:
    (_, plain, norms), (_, beside, own), (start, alone, only) = ranks.run(updates, sharded=sharded)[
        0
    ]
    # The norm is over the policy alone, and clips.
    assert [norm for norm, _ in own] == [norm for norm, _ in norms]
    assert all(norm > 0.5 for norm, _ in norms)
    for name, value in plain.items():
        assert np.array_equal(beside[name], value), name
        assert np.array_equal(alone[name], start[name]), name
    moved = {name: float(np.abs(alone[name] - start[name]).max()) for name in alone}
    assert {name for name, by in moved.items() if by} == alone.keys() - plain.keys()
    # Adam moves by the rate: two steps near the peak of 1e-3, and of 1e-2 beside.
    faster = max(float(np.abs(beside[name] - start[name]).max()) for name in alone.keys() - plain)
    assert max(moved.values()) < 2.1e-3 < 1e-2 < faster
    assert all(groups["mtp"] > 0 for _, groups in own + only)
