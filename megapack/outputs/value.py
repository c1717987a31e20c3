"""`ValueHead`: one number a position from the hidden states, as an example of adding a head.

Its weight is a module of the last stage's chunk (`attach_value_head`, before `wrap_ddp`), so that
gradient buffers, optimizer and checkpoints take it along. Hidden states are gathered over
sequence parallelism first: every tp rank computes the same loss, and the weight's gradient needs
no further sum over tp.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.errors import ContractError
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.documents import to_documents
from megapack.outputs.head import (
    HeadResult,
    Metric,
    Reduce,
    ValueRecord,
    needed,
    nothing_to_learn,
)
from megapack.parallel.context import ParallelContext

RETURNS = "returns"
"""Field of a microbatch: float32 [1, T/cp] or [B, S], what values should be."""


class ValueProjection(torch.nn.Module):
    """A weight [1, H]: hidden states to one number a position."""

    def __init__(self, like: torch.Tensor, *, hidden_size: int, seed: int) -> None:
        """Seeded weights, the same on all ranks, in the dtype and on the device of `like`."""
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        values = torch.randn(1, hidden_size, dtype=torch.float64, generator=draw)
        self.weight = torch.nn.Parameter((values / hidden_size**0.5).to(like))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, H] to [n]."""
        return torch.nn.functional.linear(hidden, self.weight).squeeze(1)


def attach_value_head(
    chunks: Sequence[Any], context: ParallelContext, *, seed: int
) -> ValueProjection | None:
    """Give the last stage's chunk a value head. Call it on all ranks, before `wrap_ddp`.

    Returns:
        The projection on the last stage, None elsewhere.
    """
    if not context.is_last_stage:
        return None
    chunk = chunks[-1]
    like = next(chunk.parameters())
    chunk.value_head = ValueProjection(like, hidden_size=chunk.config.hidden_size, seed=seed)
    projection: ValueProjection = chunk.value_head
    return projection


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueHead:
    """Half the squared error of values at counted positions, and a ValueRecord a document.

    Attributes:
        projection: from `attach_value_head`; None on the other stages, which do not call heads.
    """

    projection: ValueProjection | None

    @property
    def needs(self) -> Need:
        """Hidden states."""
        return Need.HIDDEN

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        """Collective over tp_group and cp_group.

        Without the field `returns` there is no loss.
        """
        if self.projection is None:
            raise ContractError("ValueHead: expected a projection on the last stage, found None.")
        values = self.projection(_whole(needed(output.hidden, "hidden"), context))
        result = nothing_to_learn(context)
        returns = microbatch.fields.get(RETURNS)
        if returns is not None:
            counted = microbatch.loss_mask.reshape(-1) > 0
            error = torch.where(counted, values - returns.reshape(-1), 0.0)
            loss_sum, count = error.square().sum() / 2, counted.sum()
            loss = Metric(value=loss_sum.detach(), reduce=Reduce.MEAN, count=count)
            result = HeadResult(
                loss_sum=loss_sum, num_target_tokens=count, metrics={"value_loss": loss}
            )
        documents = to_documents(values.to(torch.float32), microbatch, context)
        if documents is None:
            return result
        records = tuple(
            ValueRecord(document_id=document_id, values=document)
            for document_id, document in zip(microbatch.document_ids, documents, strict=True)
        )
        return replace(result, records=records)


def _whole(hidden: torch.Tensor, context: ParallelContext) -> torch.Tensor:
    """[n, H]: sequence parallelism undone; each rank's part gets back its own gradient."""
    if not context.sizes.sequence_parallel:
        return hidden
    from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region

    whole: torch.Tensor = gather_from_sequence_parallel_region(
        hidden, tensor_parallel_output_grad=False, group=context.tp_group
    )
    return whole
