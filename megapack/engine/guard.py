"""The guard: which steps may change the model, judged before the optimizer touches anything.

A loss is a spike when it stands more than so many standard deviations above the losses of the
last updates. The guard's state is part of a checkpoint, so that a resumed run judges alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import Any, Self

from megapack.errors import DataError
from megapack.jobs.train import GuardJob, NotFinitePolicy, SpikePolicy

_LEAST_SPREAD = 0.01
"""A deviation counts as at least this share of the mean: equal losses make no rise a spike."""


class Verdict(StrEnum):
    """What is to be done with a step's gradients."""

    APPLY = "apply"
    SKIP = "skip"
    STOP = "stop"


_ON_SPIKE = {
    SpikePolicy.WARN: Verdict.APPLY,
    SpikePolicy.SKIP: Verdict.SKIP,
    SpikePolicy.STOP: Verdict.STOP,
}
_ON_NOT_FINITE = {NotFinitePolicy.SKIP: Verdict.SKIP, NotFinitePolicy.STOP: Verdict.STOP}


class Fault(IntEnum):
    """What is wrong with a step, the worst last, so that ranks can agree on the largest."""

    NONE = 0
    LOSS_SPIKE = 1
    LOSS_NOT_FINITE = 2
    GRADIENT_NOT_FINITE = 3


class GuardError(DataError):
    """The guard ends the run, on all ranks alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardState:
    """What the next judgement depends on.

    Attributes:
        losses: of the last updates, oldest first, in nats a target token.
        skipped_in_row: steps skipped by the guard since the last update.
    """

    losses: tuple[float, ...] = ()
    skipped_in_row: int = 0

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `as_json` gave."""
        return cls(losses=tuple(value["losses"]), skipped_in_row=value["skipped_in_row"])


class Guard:
    """Judges steps one after another; equal on all ranks, because what it is told is.

    Args:
        job: policies and thresholds.
    """

    def __init__(self, job: GuardJob) -> None:
        self._job = job
        self.state = GuardState()

    def find(self, loss: float, grad_norm: float) -> Fault:
        """What is wrong with a step whose gradients are there and have not been applied.

        Args:
            loss: loss a target token in nats.
            grad_norm: norm of the gradient.
        """
        if not math.isfinite(loss):
            return Fault.LOSS_NOT_FINITE
        if not math.isfinite(grad_norm):
            return Fault.GRADIENT_NOT_FINITE
        limit = spike_limit(self.state.losses, self._job)
        return Fault.NONE if limit is None or loss <= limit else Fault.LOSS_SPIKE

    def verdict(self, fault: Fault) -> Verdict:
        """What the job says is to be done about a fault."""
        if fault is Fault.NONE:
            return Verdict.APPLY
        if fault is Fault.LOSS_SPIKE:
            return _ON_SPIKE[self._job.on_spike]
        return _ON_NOT_FINITE[self._job.on_not_finite]

    def describe(self, fault: Fault, loss: float, grad_norm: float) -> str:
        """A fault in words, with its numbers."""
        if fault is Fault.LOSS_NOT_FINITE:
            return f"expected a finite loss, found {loss}"
        if fault is Fault.GRADIENT_NOT_FINITE:
            return f"expected a finite gradient norm, found {grad_norm} at loss {loss:.6g}"
        limit = spike_limit(self.state.losses, self._job)
        return (
            f"expected a loss of at most {limit:.6g} ({self._job.spike_deviations:g} deviations "
            f"above the last {len(self.state.losses)}), found {loss:.6g}"
        )

    def applied(self, loss: float) -> None:
        """The step's update was made."""
        losses = (*self.state.losses, loss)[-self._job.window :]
        self.state = GuardState(losses=losses)

    def skipped(self) -> None:
        """The step was left out.

        Raises:
            GuardError: too many were, one after another: nothing is learnt any more.
        """
        count = self.state.skipped_in_row + 1
        self.state = GuardState(losses=self.state.losses, skipped_in_row=count)
        if count > self._job.most_skipped_in_row:
            raise GuardError(
                f"the guard skipped {count} steps one after another, expected at most "
                f"GuardJob.most_skipped_in_row = {self._job.most_skipped_in_row}. The log names "
                "their rows and documents. Go on from an earlier checkpoint with a lower lr, or "
                "look at the data."
            )


def spike_limit(losses: Sequence[float], job: GuardJob) -> float | None:
    """The loss above which a step is a spike, None while too few losses are known.

    Args:
        losses: of the last updates.
        job: threshold.
    """
    if len(losses) < job.least_losses:
        return None
    mean = math.fsum(losses) / len(losses)
    variance = math.fsum((loss - mean) ** 2 for loss in losses) / len(losses)
    return mean + job.spike_deviations * max(math.sqrt(variance), _LEAST_SPREAD * abs(mean))
