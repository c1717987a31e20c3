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
from megapack.parallel.vocab import VocabShard, target_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpWeights:
    """How the layers' losses enter a step.

    Attributes:
        scale: weight of the layers' mean loss.
        num_target_tokens: labels of the step that count in the main loss: the divisor of all
            gradients.
        layer_targets: labels of the step that count for each layer.
    """

    scale: float
    num_target_tokens: int
    layer_targets: tuple[int, ...]

    def per_label(self, layer: int) -> float:
        """Factor that turns a sum over the layer's labels into its mean times the divisor."""
        targets = self.layer_targets[layer]
        return self.num_target_tokens / targets if targets else 0.0


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
        columns = found.logits.shape[1]
        shard = VocabShard.of(context, columns=columns, vocab_size=output.vocab_size)
        logprobs = target_logprobs(found.logits, found.labels, shard)
        counted = found.labels != IGNORE_INDEX
        weighted = -torch.where(counted, logprobs, 0.0).sum() * weights.per_label(layer)
        total = total + weighted
        metrics[f"mtp_{layer + 1}_loss"] = Metric(
            value=weighted.detach(), reduce=Reduce.MEAN_BY_TOKENS
        )
    return MtpLoss(loss_sum=total * (weights.scale / len(output.mtp)), metrics=metrics)
