"""The two losses of a row, kept as sums so that rows of unlike counts add up exactly.

The loss of a step is the weighted mean cross-entropy of its predicted text plus the mean squared
error of its predicted latents, each over all rows of the step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from megapack.batch.multimodal_batch import MultimodalBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowLosses:
    """Sums over a row.

    Attributes:
        cross_entropy: scalar, nats times weights.
        text_weight: scalar, sum of the weights.
        squared_error: scalar, of predicted latents, each a mean over its channels.
        latents: scalar, how many are predicted.
    """

    cross_entropy: Tensor
    text_weight: Tensor
    squared_error: Tensor
    latents: Tensor

    def plus(self, other: "RowLosses") -> "RowLosses":
        """Sums over both."""
        return RowLosses(
            cross_entropy=self.cross_entropy + other.cross_entropy,
            text_weight=self.text_weight + other.text_weight,
            squared_error=self.squared_error + other.squared_error,
            latents=self.latents + other.latents,
        )

    def detached(self) -> "RowLosses":
        """The sums without the way back to the weights."""
        return RowLosses(
            cross_entropy=self.cross_entropy.detach(),
            text_weight=self.text_weight,
            squared_error=self.squared_error.detach(),
            latents=self.latents,
        )

    def mean_cross_entropy(self) -> float:
        """Nats a predicted token, weighted; 0 without any."""
        weight = float(self.text_weight)
        return float(self.cross_entropy.detach()) / weight if weight else 0.0

    def mean_squared_error(self) -> float:
        """Of a latent's channel; 0 without any."""
        count = float(self.latents)
        return float(self.squared_error.detach()) / count if count else 0.0


def row_losses(
    logits: Tensor, velocity: Tensor, target: Tensor, batch: MultimodalBatch
) -> RowLosses:
    """Both losses of a row.

    Args:
        logits: [c, vocabulary].
        velocity: [m, C], as predicted.
        target: [m, C].
        batch: labels and weights.
    """
    weights = batch.ce_weights.to(logits.dtype)
    entropy = functional.cross_entropy(logits, batch.label_ids, reduction="none")
    error = (velocity - target).square().mean(dim=-1)
    return RowLosses(
        cross_entropy=(entropy * weights).sum(),
        text_weight=weights.sum(),
        squared_error=error.sum(),
        latents=torch.tensor(len(batch.mse_index), dtype=logits.dtype, device=logits.device),
    )
