"""The protocol of output heads: what is computed from a model's output on the last stage.

A head returns a loss as (sum, rank-local target count); megatron-core divides once, by the count
over dp x cp. Metrics say how they are reduced, so that nothing is reduced twice or not at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.errors import ContractError
from megapack.model.forward import ModelOutput, Need
from megapack.parallel.context import ParallelContext
from megapack.records.payload import TeacherPayload
from megapack.records.routed_experts import RoutedExperts

__all__ = ["HeadResult", "Metric", "Need", "OutputHead", "Over", "Record", "Reduce", "TokenRecord"]


class Reduce(StrEnum):
    """How values of microbatches and ranks become one."""

    SUM = "sum"
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
        value: scalar tensor, detached. For MEAN_BY_TOKENS the *sum* over this rank's target
            tokens; the division comes last, by the step's count.
        reduce: how values combine.
        over: DP when every cp rank holds the value of the whole row, DP_CP when each holds its
            share.
    """

    value: torch.Tensor
    reduce: Reduce
    over: Over = Over.DP_CP


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRecord:
    """Log-probabilities of one document.

    Attributes:
        document_id: key.
        target_logprobs: float32 [m] on the host, nats, target-aligned; NaN where no label counts.
    """

    document_id: str
    target_logprobs: torch.Tensor


Record = TeacherPayload | TokenRecord | RoutedExperts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadResult:
    """What a head makes of one microbatch.

    Attributes:
        loss_sum: scalar, sum over this rank's target positions; differentiable when training.
        num_target_tokens: int64 scalar, this rank's target positions (its cp share).
        metrics: by name.
        records: documents' outputs on the host; on the writing rank only.
    """

    loss_sum: torch.Tensor
    num_target_tokens: torch.Tensor
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    records: tuple[Record, ...] = ()


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


def needed(value: torch.Tensor | None, name: str) -> torch.Tensor:
    """The tensor that a head asked for.

    Raises:
        ContractError: the forward did not give it.
    """
    if value is None:
        raise ContractError(f"expected ModelOutput.{name}, found None: the head must need it.")
    return value
