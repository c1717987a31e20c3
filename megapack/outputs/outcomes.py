"""Divergence of two distributions over few outcomes, such as a teacher's top-k and its tail.

Letters: r tokens, M outcomes.
"""

import math
from collections.abc import Callable

import torch

from megapack.jobs.distill import Divergence

_LOG_2 = math.log(2.0)


def outcome_divergence(
    teacher: torch.Tensor, student: torch.Tensor, divergence: Divergence
) -> torch.Tensor:
    """Differentiable divergence of the student's distribution from the teacher's.

    An outcome with log-prob -inf on either side takes no part, and both sides are renormalised
    over the others: for the student that is conditioning; for the teacher it also undoes the
    rounding with which its log-probs were stored, so that no divergence is below 0 by more than
    the rounding of this computation. Without any common outcome the divergence is 0.

    Args:
        teacher: [r, M], nats.
        student: [r, M], nats, of the same dtype.
        divergence: which.

    Returns:
        [r], nats. Gradients are finite for finite or -inf log-probs of either side.
    """
    common = (teacher != -torch.inf) & (student != -torch.inf)
    # So low that its probability is an exact 0, so high that a difference of two is finite.
    lowest = torch.finfo(student.dtype).min / 4
    log_p = torch.where(common, teacher, lowest).log_softmax(dim=-1)
    log_q = torch.where(common, student, lowest).log_softmax(dim=-1)
    return _FORMULAS[divergence](log_p, log_q)


def _forward(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


def _reverse(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    return _forward(log_q, log_p)


def _middle(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    log_m = torch.logaddexp(log_p, log_q) - _LOG_2
    return (_forward(log_p, log_m) + _forward(log_q, log_m)) / 2


_FORMULAS: dict[Divergence, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Divergence.FORWARD_KL: _forward,
    Divergence.REVERSE_KL: _reverse,
    Divergence.JENSEN_SHANNON: _middle,
}
