"""Divergences over few outcomes: known values, and the corners of log-probs that are -inf."""

import math

import numpy as np
import pytest
import torch

from megapack.jobs.distill import Divergence
from megapack.outputs.outcomes import outcome_divergence

INF = math.inf


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("divergence", "expected"),
    [
        (Divergence.FORWARD_KL, 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)),
        (Divergence.REVERSE_KL, 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)),
        (
            Divergence.JENSEN_SHANNON,
            0.25 * math.log(0.5 / 0.625)
            + 0.25 * math.log(0.5 / 0.375)
            + 0.375 * math.log(0.75 / 0.625)
            + 0.125 * math.log(0.25 / 0.375),
        ),
    ],
)
def test_divergence_of_a_fair_coin_and_a_bent_one(divergence: Divergence, expected: float) -> None:
    found = outcome_divergence(logs(0.5, 0.5), logs(0.75, 0.25), divergence)
    assert found.tolist() == pytest.approx([expected], rel=1e-14)


@pytest.mark.parametrize("divergence", Divergence)
def test_outcome_that_one_side_cannot_give_takes_no_part(divergence: Divergence) -> None:
    teacher = logs(0.4, 0.4, 0.0, 0.2)
    student = logs(0.6, 0.2, 0.2, 0.0).requires_grad_()
    found = outcome_divergence(teacher, student, divergence)
    expected = outcome_divergence(logs(0.5, 0.5), logs(0.75, 0.25), divergence)
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-14)
    found.sum().backward()
    assert student.grad is not None
    assert student.grad.isfinite().all()
    assert student.grad[0, 2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("divergence", Divergence)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_in_common_is_an_exact_zero(divergence: Divergence, dtype: torch.dtype) -> None:
    teacher = torch.tensor([[-INF, 0.0], [-INF, -INF]], dtype=dtype)
    student = torch.tensor([[0.0, -INF], [-INF, -INF]], dtype=dtype).requires_grad_()
    found = outcome_divergence(teacher, student, divergence)
    found.sum().backward()
    assert student.grad is not None
    assert found.tolist() == [0.0, 0.0]
    assert not student.grad.any()


@pytest.mark.parametrize("divergence", Divergence)
def test_rounding_of_a_stored_teacher_never_makes_a_divergence_negative(
    divergence: Divergence,
) -> None:
    draw = np.random.default_rng(0)
    exact = torch.from_numpy(draw.normal(size=(400, 9)) * 2).log_softmax(-1)
    stored = exact.half().float()
    assert (stored.exp().sum(-1) < 1 - 1e-4).any(), "fp16 loses mass that is worth a test"
    found = outcome_divergence(stored, exact.float(), divergence)
    assert float(found.min()) > -np.spacing(np.float32(exact.abs().max()))


@pytest.mark.parametrize("divergence", Divergence)
def test_nan_of_the_student_is_not_hidden(divergence: Divergence) -> None:
    found = outcome_divergence(logs(0.5, 0.5), torch.tensor([[math.nan, 0.0]]).double(), divergence)
    assert found.isnan().all()
