"""Training steps of the multimodal model: several rows a step, whatever each of them predicts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megapack.batch.multimodal_batch import MultimodalBatch
from megapack.errors import ContractError
from megapack.model.multimodal import MixtureModel
from megapack.model.multimodal_loss import RowLosses


@dataclass(frozen=True, slots=True, kw_only=True)
class LossShares:
    """Parts of the two means in the loss of a step."""

    cross_entropy: float = 1.0
    squared_error: float = 1.0


def accumulate(
    model: MixtureModel,
    batches: Sequence[MultimodalBatch],
    *,
    seed: int,
    shares: LossShares | None = None,
) -> RowLosses:
    """Add the gradient of a step's loss to the weights', row by row.

    What the means are over is counted from all rows first, so the gradient is that of one loss over
    all of them, however unlike they are.

    Args:
        model: its gradients are added to.
        batches: rows of the step.
        seed: of the noise.
        shares: of the two means; equal when None.

    Returns:
        Sums over all rows, detached.

    Raises:
        ContractError: no rows, or rows that predict nothing.
    """
    shares = shares or LossShares()
    weight = sum(float(batch.ce_weights.double().sum()) for batch in batches)
    latents = sum(len(batch.mse_index) for batch in batches)
    if not weight and not latents:
        raise ContractError(
            f"accumulate: expected rows with something to predict, found none in {len(batches)}."
        )
    text_part = shares.cross_entropy / weight if weight else 0.0
    latent_part = shares.squared_error / latents if latents else 0.0
    total: RowLosses | None = None
    for batch in batches:
        losses = model(batch, seed=seed)
        (losses.cross_entropy * text_part + losses.squared_error * latent_part).backward()
        total = losses.detached() if total is None else total.plus(losses.detached())
    if total is None:
        raise ContractError("accumulate: expected at least one row, found none.")
    return total


def train_step(
    model: MixtureModel,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[MultimodalBatch],
    *,
    seed: int,
    max_norm: float = 1.0,
) -> RowLosses:
    """One step of the optimizer.

    Args:
        model: whose weights the optimizer has.
        optimizer: any of torch's.
        batches: rows of the step.
        seed: of the noise; another for each step.
        max_norm: gradients of a larger norm are scaled down to it.
    """
    optimizer.zero_grad(set_to_none=True)
    losses = accumulate(model, batches, seed=seed)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return losses


@torch.no_grad()
def evaluate(
    model: MixtureModel, batches: Sequence[MultimodalBatch], *, seed: int
) -> RowLosses | None:
    """Losses over rows, with the noise of a seed: the same call measures the same thing."""
    total: RowLosses | None = None
    for batch in batches:
        losses = model(batch, seed=seed)
        total = losses if total is None else total.plus(losses)
    return total
