"""Law 3: loss, metrics, counts and gradients at any layout are those of one process.

The most telling rows of the table that `make equivalence` measures as a whole.
"""

import numpy as np
import pytest

from tests.support.equivalence import Equivalence
from tests.support.layout_table import Dtype, cases
from tests.support.ranks import RankServer

SEED = 1
TELLING = {
    case.name: case
    for case in cases()
    if case.name
    in {
        "dp2",
        "tp2 sp",
        "cp2",
        "pp2",
        "tp2 sp cp2",
        "cp2 pp2",
        "tp2, qk-norm",
        "tp2 sp cp2, tied",
        "tp2 sp cp2, qkv biases",
        "tp2 sp pp2, tied",
        "cp2 dp2, sharded gradients",
        "dp2, three updates",
        "cp2 pp2, bf16",
        "ep2 over tp2 sp, MoE with router losses",
        "ep2 over cp2, two rows a microbatch, MoE",
        "cp2 pp3, MoE with shared expert",
        "tp2 sp cp2, MTP",
        "cp2 pp2, selective recompute",
    }
}


@pytest.fixture(scope="module")
def equivalence(ranks: RankServer) -> Equivalence:
    return Equivalence.on_random_rows(ranks, SEED)


@pytest.mark.parametrize("name", TELLING)
def test_layout_equals_one_process(equivalence: Equivalence, name: str) -> None:
    measured = equivalence.measure(TELLING[name])
    assert measured.stands, (measured.figures, measured.failure)


def test_counts_of_schedule_normalizer_and_labels_agree(equivalence: Equivalence) -> None:
    outcome = equivalence.reference(TELLING["dp2"])[Dtype.FLOAT64]
    labels = sum(int((row.labels() != -100).sum()) for row in equivalence.rows)
    assert outcome.num_target_tokens == outcome.normalizer_tokens == labels


def test_gradients_are_those_of_the_mean_over_target_tokens(equivalence: Equivalence) -> None:
    outcome = equivalence.reference(TELLING["dp2"])[Dtype.FLOAT64]
    assert outcome.metrics["loss"] == outcome.loss_sum / outcome.num_target_tokens
    assert all(np.isfinite(gradient).all() for gradient in outcome.gradients.values())


def test_names_of_the_table_are_unique_and_all_telling_ones_exist() -> None:
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names) >= 24
    assert len(TELLING) >= 10
