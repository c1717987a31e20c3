"""The training loss: token-mean of the negative log-likelihood of the labels.

Masked at the loss: a masked position contributes an exact zero to the sum and to the gradient.
"""

from dataclasses import dataclass

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.head import HeadResult, Metric, Reduce
from megapack.outputs.logprobs import label_logprobs
from megapack.parallel.context import ParallelContext


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLossHead:
    """Sum of the token losses of this rank's positions and how many they are.

    The mean over the step is formed by megatron-core, over all dp x cp ranks and microbatches at
    once, so the gradient does not depend on how the step is split.
    """

    @property
    def needs(self) -> Need:
        """Logits."""
        return Need.LOGITS

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        """Collective over tp_group."""
        logprobs = label_logprobs(output, microbatch, context)
        counted = microbatch.loss_mask.reshape(-1) > 0
        loss_sum = -torch.where(counted, logprobs, 0.0).sum()
        return HeadResult(
            loss_sum=loss_sum,
            num_target_tokens=counted.sum(),
            metrics={"loss": Metric(value=loss_sum.detach(), reduce=Reduce.MEAN_BY_TOKENS)},
        )
