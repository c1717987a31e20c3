"""The protocol of output heads: what is computed from a model's output on the last stage.

A head returns a loss as (sum, rank-local divisor); megatron-core divides once, by the divisor
over dp x cp and all microbatches. Metrics say how they are reduced, so that nothing is reduced
twice or not at all. `docs/heads.md` adds a head in 30 lines.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.errors import ContractError
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.records import Record, TokenRecord, TopkRecord, ValueRecord
from megapack.parallel.context import ParallelContext

__all__ = [
    "HeadResult",
    "Metric",
    "Need",
    "OutputHead",
    "Over",
    "Record",
    "Reduce",
    "TokenRecord",
    "TopkRecord",
    "ValueRecord",
]


class Reduce(StrEnum):
    """How values of microbatches and ranks become one.

    MEAN divides the sum of values by the sum of the metric's own counts, MEAN_BY_TOKENS by the
    target tokens of the step.
    """

    SUM = "sum"
    MEAN = "mean"
    MEAN_BY_TOKENS = "mean_by_tokens"
    MAX = "max"


class Over(StrEnum):
    """Ranks whose values differ and are reduced."""

    DP = "dp"
    DP_CP = "dp_cp"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metric:
    """A value of one microbatch on one rank.

    Attributes:
        value: scalar tensor, detached, on the device. For means the *sum* over this rank's
            share; the division comes last.
        reduce: how values combine.
        over: DP when every cp rank holds the value of the whole row, DP_CP when each holds its
            share.
        count: whole number, for MEAN only: what this rank's share of the sum runs over.
    """

    value: torch.Tensor
    reduce: Reduce
    over: Over = Over.DP_CP
    count: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if (self.count is not None) != (self.reduce is Reduce.MEAN):
            raise ContractError(
                f"Metric: expected a count for mean, and for no other, found {self.reduce.value} "
                f"with count {self.count}."
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadResult:
    """What a head makes of one microbatch.

    Attributes:
        loss_sum: scalar, sum over this rank's target positions; differentiable when training.
        num_target_tokens: int64 scalar, this rank's target positions (its cp share).
        metrics: by name; the same names in every microbatch and on every rank.
        records: documents' outputs on the host; on the writing rank only.
        divisor: whole number, this rank's share of what the step's loss is divided by; None for
            num_target_tokens.
    """

    loss_sum: torch.Tensor
    num_target_tokens: torch.Tensor
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    divisor: torch.Tensor | None = None

    @property
    def divides_by(self) -> torch.Tensor:
        """The divisor, or the target tokens."""
        return self.num_target_tokens if self.divisor is None else self.divisor


class OutputHead(Protocol):
    """Computes something from a model's output."""

    @property
    def needs(self) -> Need:
        """What the forward must give."""
        ...

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        """Collective over the tp and cp groups of the last stage; all their ranks call.

        Args:
            output: of the last pipeline stage.
            microbatch: what went in.
            context: this rank.
        """
        ...


def needed[T](value: T | None, name: str) -> T:
    """What a head asked for.

    Raises:
        ContractError: the forward did not give it.
    """
    if value is None:
        raise ContractError(f"expected ModelOutput.{name}, found None: the head must need it.")
    return value


def nothing_to_learn(context: ParallelContext) -> HeadResult:
    """The result of a head that has no loss."""
    return HeadResult(
        loss_sum=torch.zeros((), device=context.device),
        num_target_tokens=torch.zeros((), dtype=torch.int64, device=context.device),
    )
