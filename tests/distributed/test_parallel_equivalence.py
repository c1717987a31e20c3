"""Law 3: loss, counts and gradients at any layout are those of one process.

In float64 within 1e-12. In float32 at most 4 times as far from the float64 one-process run as
the float32 one-process run is itself.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankServer
from tests.support.rows import make_row, worst_error

ROWS = [
    make_row([5, 17, 3, 23], seed=0),
    make_row([1, 2, 15], seed=1),
    make_row([40, 9, 7], seed=2, supervised=0.2),
    make_row([13, 31], seed=3),
]
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_embeddings": True},
    "qk_norm": {"qk_layernorm": True},
}
LAYOUTS = {
    "cp2": ParallelSizes(cp=2),
    "tp2": ParallelSizes(tp=2),
    "tp2-sp": ParallelSizes(tp=2, sequence_parallel=True),
    "dp2": ParallelSizes(dp=2),
    "pp2": ParallelSizes(pp=2),
    "tp2-sp-cp2": ParallelSizes(tp=2, cp=2, sequence_parallel=True),
    "cp2-pp2": ParallelSizes(cp=2, pp=2),
    "cp4": ParallelSizes(cp=4),
}


def step(*, sizes: ParallelSizes, dtype: str, variant: dict[str, Any]) -> Any:
    from tests.support.tiny_training import JOB, train_step

    job = JOB.model_copy(update=variant)
    return train_step(sizes=sizes, rows=ROWS, dtype=dtype, job=job)


Reference = Callable[[str, str], Any]


@pytest.fixture(scope="module")
def reference(ranks: RankServer) -> Reference:
    """One-process outcome by dtype and variant, computed once each."""
    known: dict[tuple[str, str], Any] = {}

    def outcome(dtype: str, variant: str) -> Any:
        key = (dtype, variant)
        if key not in known:
            known[key] = ranks.run(
                step, sizes=ParallelSizes(), dtype=dtype, variant=VARIANTS[variant]
            )[0]
        return known[key]

    return outcome


def run(ranks: RankServer, layout: str, dtype: str, variant: str = "plain") -> Any:
    sizes = LAYOUTS[layout]
    outcomes = ranks.run(
        step, world_size=sizes.world_size, sizes=sizes, dtype=dtype, variant=VARIANTS[variant]
    )
    numbers = {(outcome.loss_sum, outcome.num_target_tokens) for outcome in outcomes}
    assert len(numbers) == 1, "every rank reports the same numbers"
    return outcomes[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_step_float64_equals_one_process(
    ranks: RankServer, reference: Reference, layout: str
) -> None:
    expected, got = reference("float64", "plain"), run(ranks, layout, "float64")
    assert got.num_target_tokens == expected.num_target_tokens
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
    assert got.metrics == pytest.approx(expected.metrics, rel=1e-12)
    assert worst_error(got.gradients, expected.gradients) < 1e-12


@pytest.mark.parametrize("layout", ["cp2", "tp2-sp", "dp2", "pp2", "tp2-sp-cp2"])
def test_step_float32_error_within_4x_of_one_process(
    ranks: RankServer, reference: Reference, layout: str
) -> None:
    truth = reference("float64", "plain").gradients
    own = worst_error(reference("float32", "plain").gradients, truth)
    got = run(ranks, layout, "float32")
    assert worst_error(got.gradients, truth) <= 4 * own
    assert got.loss_sum == pytest.approx(reference("float64", "plain").loss_sum, rel=1e-6)


@pytest.mark.parametrize(
    ("layout", "variant"),
    [("pp2", "tied"), ("tp2-sp-cp2", "tied"), ("tp2-sp-cp2", "qk_norm"), ("tp2", "qk_norm")],
)
def test_step_of_model_variant_equals_one_process(
    ranks: RankServer, reference: Reference, layout: str, variant: str
) -> None:
    expected, got = reference("float64", variant), run(ranks, layout, "float64", variant)
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
    assert worst_error(got.gradients, expected.gradients) < 1e-12


def test_counts_of_schedule_normalizer_and_labels_agree(reference: Reference) -> None:
    outcome = reference("float64", "plain")
    labels = sum(int((row.labels() != -100).sum()) for row in ROWS)
    assert outcome.num_target_tokens == outcome.normalizer_tokens == labels


def test_gradients_are_those_of_the_mean_over_target_tokens(reference: Reference) -> None:
    outcome = reference("float64", "plain")
    assert outcome.metrics["loss"] == outcome.loss_sum / outcome.num_target_tokens
    assert all(np.isfinite(gradient).all() for gradient in outcome.gradients.values())
