"""Log-probabilities of the labels, as a tensor for other heads and as records by document."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from megapack.batch.microbatch import MicroBatch
from megapack.layout.token_fields import unplace
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.head import HeadResult, TokenRecord, needed
from megapack.parallel.collectives import gather_row
from megapack.parallel.context import ParallelContext
from megapack.parallel.vocab import VocabShard, target_logprobs
from megapack.records.packed_row import PackedRow


def label_logprobs(
    output: ModelOutput,
    microbatch: MicroBatch,
    context: ParallelContext,
    *,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Collective over tp_group: log-probability of each position's label.

    Args:
        output: with logits.
        microbatch: labels.
        context: this rank.
        temperature: logits are divided by it.

    Returns:
        [T/cp], float32 (float64 for a float64 model), nats, target-aligned, differentiable;
        meaningless where no label counts.
    """
    logits = needed(output.logits, "logits")
    shard = VocabShard.of(context, columns=logits.shape[1], vocab_size=output.vocab_size)
    return target_logprobs(logits, microbatch.labels.reshape(-1), shard, temperature=temperature)


def by_document(row: PackedRow, values: torch.Tensor) -> list[npt.NDArray[np.float32]]:
    """Cut a row's log-probs into its documents.

    Args:
        row: the row.
        values: [T], row order.

    Returns:
        N arrays float32 [m]; NaN where no label counts.
    """
    host = values.detach().to(device="cpu", dtype=torch.float32).numpy().copy()
    host[~row.loss_mask()] = np.nan
    return [np.ascontiguousarray(part) for part in unplace(host, row.layout)]


def nothing_to_learn(context: ParallelContext) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss sum and target count of a head that has no loss."""
    zero = torch.zeros((), device=context.device)
    return zero, torch.zeros((), dtype=torch.int64, device=context.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobHead:
    """Emits a TokenRecord for each document of a row, on the writing rank.

    Attributes:
        temperature: logits are divided by it.
    """

    temperature: float = 1.0

    @property
    def needs(self) -> Need:
        """Logits."""
        return Need.LOGITS

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        """Collective over tp_group and cp_group."""
        local = label_logprobs(output, microbatch, context, temperature=self.temperature)
        whole = gather_row(local, microbatch.attention.layout, context)
        records: tuple[TokenRecord, ...] = ()
        if whole is not None and context.is_writer:
            records = tuple(
                TokenRecord(document_id=document_id, target_logprobs=torch.from_numpy(values))
                for document_id, values in zip(
                    microbatch.document_ids, by_document(microbatch.row, whole), strict=True
                )
            )
        loss_sum, count = nothing_to_learn(context)
        return HeadResult(loss_sum=loss_sum, num_target_tokens=count, records=records)
