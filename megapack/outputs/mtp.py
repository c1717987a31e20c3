"""The loss of the multi-token prediction layers, beside whatever loss the head computes.

Layer k's loss is the mean negative log-likelihood over *its* labels of the whole step, counted
like those of the main loss; the layers' mean is added with `mtp_loss_scale`. Megatron-core instead
re-weights each rank's microbatch by its own two counts, so that its gradient depends on dp, cp and
the split into microbatches. Letters: n = local positions.
"""

from dataclasses import dataclass

import torch

from megapack.layout.pack_layout import IGNORE_INDEX
from megapack.model.forward import ModelOutput
from megapack.outputs.head import Metric, Reduce
from megapack.parallel.context import ParallelContext
from megapack.parallel.vocab import VocabShard, source_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpWeights:
    """How the layers' losses enter a step.

    Attributes:
        scale: weight of the layers' mean loss.
        divisor: of the step's gradients: its target tokens, or its documents with a target.
        layer_targets: labels of the step that count for each layer.
        tokens_per_chunk: tokens that log-probs work on at once; None takes 32M logits.
    """

    scale: float
    divisor: int
    layer_targets: tuple[int, ...]
    tokens_per_chunk: int | None = None

    def per_label(self, layer: int) -> float:
        """Factor that turns a sum over the layer's labels into its mean times the divisor."""
        targets = self.layer_targets[layer]
        return self.divisor / targets if targets else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MtpLoss:
    """What one microbatch adds.

    Attributes:
        loss_sum: scalar to add to the head's sum; differentiable.
        metrics: `mtp_<layer>_loss`: the layer's mean loss.
    """

    loss_sum: torch.Tensor
    metrics: dict[str, Metric]


def mtp_loss(output: ModelOutput, weights: MtpWeights, context: ParallelContext) -> MtpLoss:
    """Collective over tp_group: loss of all layers on one microbatch.

    Args:
        output: with `mtp`.
        weights: of the step.
        context: this rank.
    """
    total = torch.zeros((), device=context.device, dtype=torch.float64)
    metrics = {}
    for layer, found in enumerate(output.mtp):
        shard = VocabShard.of(
            context,
            columns=found.logits.columns,
            vocab_size=output.vocab_size,
            tokens_per_chunk=weights.tokens_per_chunk,
        )
        logprobs = source_logprobs(found.logits, found.labels, shard)
        counted = found.labels != IGNORE_INDEX
        loss_sum = -torch.where(counted, logprobs, 0.0).sum()
        total = total + loss_sum * weights.per_label(layer)
        metrics[f"mtp_{layer + 1}_loss"] = Metric(
            value=loss_sum.detach(), reduce=Reduce.MEAN, count=counted.sum()
        )
    return MtpLoss(loss_sum=total * (weights.scale / len(output.mtp)), metrics=metrics)
