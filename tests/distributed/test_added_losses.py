"""Losses of MTP layers and of routers, beside the head's: each mean, each form of logits."""

from typing import Any

import numpy as np
import pytest

from megapack.jobs.model import ModelJob
from megapack.jobs.outputs import LogitsForm, LossMean
from megapack.layout.granularity import ParallelSizes
from megapack.records.packed_row import PackedRow
from tests.support.layout_table import MODELS, model_job
from tests.support.ranks import RankServer
from tests.support.rows import VOCAB, StepOutcome, make_row, one_document, worst_error

EXACT = 1e-12
ONE = ParallelSizes()
LAYOUTS = {"dp2": ParallelSizes(dp=2), "cp2": ParallelSizes(cp=2)}
ROWS = [make_row(n, seed=i) for i, n in enumerate([[5, 17, 3, 23], [1, 2, 15], [40, 9], [13, 31]])]
# Four documents that have targets: one in float32 over four is exact
# (docs/upstream/gradients_by_float32_reciprocal.md).
FOUR = [make_row([11, 23], seed=5), make_row([9, 30], seed=6)]
MTP_SCALE = 0.3
EXPERTS_AND_MTP = model_job(
    "MoE with router losses", {"mtp_num_layers": 2, "mtp_loss_scale": MTP_SCALE}
)


def step(
    *,
    sizes: ParallelSizes,
    rows: list[PackedRow],
    job: ModelJob,
    mean: LossMean = LossMean.SEQUENCE_MEAN,
    form: LogitsForm = LogitsForm.MODEL_DTYPE,
) -> StepOutcome:
    """Run on ranks, in float64."""
    import torch

    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.outputs.loss import Averaging, TokenLossHead
    from megapack.outputs.source import LogitReading
    from tests.support.tiny_training import outcome_of, packed_step, start, whole_parameters

    context, chunks, wrapped = start(sizes, dtype=torch.float64, job=job)
    head = TokenLossHead(
        averaging=Averaging(mean=mean), reading=LogitReading(form=form, tokens_per_chunk=7)
    )
    made = packed_step(rows, context)
    result = run_schedule(wrapped, SchedulePlan(step=made, head=head), context)
    gradients = whole_parameters(chunks[0], context, tied=job.tie_embeddings)
    outcome = outcome_of(result, made, gradients)
    context.destroy()
    return outcome


def steps_of(*, groups: list[list[PackedRow]], jobs: list[ModelJob]) -> list[list[StepOutcome]]:
    """One process: a step of each group of rows under each job."""
    return [[step(sizes=ONE, rows=rows, job=job) for job in jobs] for rows in groups]


def assert_same(got: StepOutcome, expected: StepOutcome) -> None:
    assert got.num_target_tokens == expected.num_target_tokens
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=EXACT)
    assert got.metrics == pytest.approx(expected.metrics, rel=EXACT)
    assert worst_error(got.gradients, expected.gradients) < EXACT


@pytest.fixture(scope="module")
def one_process(ranks: RankServer) -> StepOutcome:
    return ranks.run(step, sizes=ONE, rows=ROWS, job=EXPERTS_AND_MTP)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sequence_mean_with_router_losses_and_mtp_is_that_of_one_process(
    ranks: RankServer, one_process: StepOutcome, layout: str
) -> None:
    got = ranks.run(step, world_size=2, sizes=LAYOUTS[layout], rows=ROWS, job=EXPERTS_AND_MTP)[0]
    assert_same(got, one_process)


def documents_alone() -> list[list[PackedRow]]:
    return [[one_document(row, i)] for row in FOUR for i in range(row.layout.num_segments)]


def weighted_sum(
    found: list[tuple[float, dict[str, np.ndarray]]],
) -> dict[str, np.ndarray]:
    return {
        name: sum(weight * gradients[name] for weight, gradients in found) for name in found[0][1]
    }


def test_sequence_mean_with_an_added_loss_is_made_of_documents_alone(ranks: RankServer) -> None:
    """The head's loss weighs documents alike, MTP layers by their targets, routers by tokens."""
    alone = documents_alone()
    targets = np.array([int(row.loss_mask()[1:].sum()) for (row,) in alone])
    lengths = np.array([row.layout.row_length for (row,) in alone])
    z_loss = {**MODELS["MoE"]["moe"], "z_loss_coefficient": 0.5}
    # One layer: megatron-core's router rounds what it sends back to earlier layers to float32,
    # so that there gradients of two losses do not add up.
    cases = [
        (
            "dense",
            {"mtp_num_layers": 1, "mtp_loss_scale": MTP_SCALE},
            {"mtp_num_layers": 1, "mtp_loss_scale": 0.0},
            targets,
        ),
        ("MoE", {"num_layers": 1, "moe": z_loss}, {"num_layers": 1}, lengths),
    ]
    for model, added, without, counts in cases:
        jobs = [model_job(model, added), model_job(model, without)]
        found = ranks.run(steps_of, groups=[FOUR, *alone], jobs=jobs, timeout_s=120)[0]
        (together, plain), *each = found
        assert together.num_target_tokens == sum(one.num_target_tokens for one, _ in each)
        parts = []
        for (both, head), count in zip(each, counts, strict=True):
            share = count / counts.sum()
            parts += [(share, both.gradients), (1 / len(each) - share, head.gradients)]
        expected = weighted_sum(parts)
        assert worst_error(together.gradients, expected) < EXACT
        # The added loss is there to be seen.
        assert worst_error(plain.gradients, expected) > 1e-4
        name = "mtp_1_loss" if model == "dense" else "router_z_loss"
        value = sum(
            weight * one.metrics[name]
            for weight, (one, _) in zip(counts / counts.sum(), each, strict=True)
        )
        assert together.metrics[name] == pytest.approx(value, rel=EXACT)


def by_chunks(*, sizes: ParallelSizes, tied: bool) -> dict[str, tuple[StepOutcome, bool]]:
    """Run on ranks: for each form of logits, the step, and whether logits of all positions were."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    # No other activation is 104 / tp wide.
    job = model_job("MTP", {"tie_embeddings": tied, "vocab_multiple": 13})
    columns = -(-VOCAB // (13 * sizes.tp)) * 13
    positions = ROWS[0].layout.row_length

    class Logits(TorchDispatchMode):
        seen = False

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            for leaf in tree_leaves(made):
                size = getattr(leaf, "shape", ())
                self.seen |= len(size) > 1 and size[-1] == columns and positions in size
            return made

    found = {}
    for form in (LogitsForm.MODEL_DTYPE, LogitsForm.BY_CHUNKS):
        with Logits() as logits:
            outcome = step(sizes=sizes, rows=ROWS, job=job, mean=LossMean.TOKEN_MEAN, form=form)
        found[form.value] = outcome, logits.seen
    return found


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_mtp_losses_by_chunks_are_those_of_whole_logits_that_never_exist(
    ranks: RankServer, *, tied: bool
) -> None:
    one = ranks.run(by_chunks, sizes=ONE, tied=tied)[0]
    sizes = ParallelSizes(tp=2, sequence_parallel=True)
    two = ranks.run(by_chunks, world_size=2, sizes=sizes, tied=tied)[0]
    expected = one["model_dtype"][0]
    assert {"mtp_1_loss", "mtp_2_loss"} < expected.metrics.keys()
    for found in (one, two):
        for form, (outcome, saw_logits) in found.items():
            assert_same(outcome, expected)
            assert saw_logits == (form == "model_dtype")
