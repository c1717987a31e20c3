"""What a trained model says and paints: greedy answers, images by a few Euler steps.

Prompts go through the same lay-out and assembly as training rows, all of them in one row, which is
computed anew for each token or step. That is slow and short, and shows that a packed row is enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from megapack.batch.multimodal_batch import MultimodalBatch
from megapack.batch.multimodal_tensors import to_batch
from megapack.errors import ContractError
from megapack.model.multimodal import MixtureModel
from megapack.model.multimodal_flow import NoisyLatents, noise_of
from megapack.multimodal.assemble import assemble
from megapack.multimodal.config import MaskForm, WritingRules
from megapack.multimodal.lay import lay_out
from megapack.records.multimodal_sample import LaidSample, PlanItem, Sample, SpanKind

_BEFORE_END = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Euler:
    """How images are painted.

    Attributes:
        steps: from noise to image.
        guidance: 1 follows the conditions; more exaggerates what they change.
        seed: of the noise.
    """

    steps: int = 20
    guidance: float = 1.0
    seed: int = 0


@torch.no_grad()
def answers(
    model: MixtureModel, prompts: Sequence[Sample], rules: WritingRules, *, max_tokens: int
) -> list[list[int]]:
    """The likeliest next tokens after each prompt, until the end token or `max_tokens`.

    Args:
        model: on any device.
        prompts: with pixels; what is answered comes last.
        rules: that the model was trained by.
        max_tokens: of an answer.

    Returns:
        Ids of each answer, without begin and end tokens.
    """
    ids: list[list[int]] = [[] for _ in prompts]
    open_ones = set(range(len(prompts)))
    while open_ones:
        extended = [
            replace(prompt, items=(*prompt.items, _text(said)))
            for prompt, said in zip(prompts, ids, strict=True)
        ]
        batch = _batch([_laid(one, rules) for one in extended], rules, model)
        lasts = torch.tensor(batch.sample_lengths).cumsum(0) - _BEFORE_END
        clean = model.latents(batch)
        noisy = NoisyLatents(latents=clean, times=clean.new_zeros(len(clean)))
        likeliest = model.lm_head(model.hidden(batch, noisy)[lasts]).argmax(dim=-1).tolist()
        for number in sorted(open_ones):
            if likeliest[number] == rules.special.eos:
                open_ones.discard(number)
                continue
            ids[number].append(likeliest[number])
            if len(ids[number]) == max_tokens:
                open_ones.discard(number)
    return ids


@torch.no_grad()
def paint(
    model: MixtureModel, prompts: Sequence[Sample], rules: WritingRules, euler: Euler
) -> list[Tensor]:
    """Images for prompts.

    Args:
        model: on any device.
        prompts: samples with pixels; the last item of each is the predicted VAE image, whose
            pixels are not looked at.
        rules: that the model was trained by.
        euler: how.

    Returns:
        float [3, h, w] in [0, 1] for each prompt, on the CPU.

    Raises:
        ContractError: a prompt that does not end in a predicted image.
    """
    for prompt in prompts:
        if not (prompt.items and prompt.items[-1].loss and prompt.items[-1].kind is SpanKind.VAE):
            raise ContractError("paint: expected prompts that end in a predicted VAE image.")
    rows = [_batch([_laid(one, rules) for one in prompts], rules, model)]
    if euler.guidance != 1:
        rows.append(
            _batch([_laid(one, rules, drop=SpanKind.TEXT) for one in prompts], rules, model)
        )
    row = rows[0]
    latents = model.latents(row)
    painted = torch.searchsorted(row.vae_index, row.mse_index)
    noise = noise_of(row, model.config.latent_channels, seed=euler.seed).to(model.dtype)
    latents[painted] = noise[painted]
    times = torch.linspace(1, 0, euler.steps + 1, dtype=model.dtype)
    shift = model.config.timestep_shift
    times = shift * times / (1 + (shift - 1) * times)
    for now, then in zip(times[:-1].tolist(), times[1:].tolist(), strict=True):
        at = latents.new_zeros(len(latents))
        at[painted] = now
        noisy = NoisyLatents(latents=latents, times=at)
        ways = [_velocity(model, one, noisy) for one in rows]
        way = ways[-1] + euler.guidance * (ways[0] - ways[-1]) if len(ways) > 1 else ways[0]
        latents = latents.index_add(0, painted, (then - now) * way)
    return _decoded(model, row, latents, prompts, rules)


def _velocity(model: MixtureModel, batch: MultimodalBatch, noisy: NoisyLatents) -> Tensor:
    predicted: Tensor = model.velocity_head(model.hidden(batch, noisy)[batch.mse_index])
    return predicted


def _decoded(
    model: MixtureModel,
    row: MultimodalBatch,
    latents: Tensor,
    prompts: Sequence[Sample],
    rules: WritingRules,
) -> list[Tensor]:
    """The last image of each prompt, with the pixels' normalisation undone."""
    counts = [sum(item.kind is SpanKind.VAE for item in prompt.items) for prompt in prompts]
    lasts = [count - 1 for count in np.cumsum(counts).tolist()]
    parts = torch.split(latents, row.vae_shapes.prod(dim=-1).tolist())
    mean = torch.tensor(rules.vision.vae_mean, dtype=latents.dtype)[:, None, None]
    std = torch.tensor(rules.vision.vae_std, dtype=latents.dtype)[:, None, None]
    images = []
    for last in lasts:
        height, width = row.vae_shapes[last].tolist()
        pixels = model.vae.decode(parts[last], height=height, width=width).cpu()
        images.append((pixels * std + mean).clamp(0, 1))
    return images


def _text(ids: Sequence[int]) -> PlanItem:
    return PlanItem(kind=SpanKind.TEXT, text=np.array(ids, dtype=np.int32))


def _laid(sample: Sample, rules: WritingRules, *, drop: SpanKind | None = None) -> LaidSample:
    """A sample at an arbitrary noise level, all items of one kind dropped."""
    kept = np.array([item.kind is not drop for item in sample.items], dtype=np.bool_)
    noised = np.array([item.kind is SpanKind.VAE and item.loss for item in sample.items])
    timesteps = np.where(noised, 0.0, -np.inf).astype(np.float32)
    return lay_out(sample, kept=kept, timesteps=timesteps, rules=rules)


def _batch(laid: Sequence[LaidSample], rules: WritingRules, model: MixtureModel) -> MultimodalBatch:
    row = assemble(laid, rules)
    batch = to_batch(row, mask=MaskForm.NESTED, padded_length=row.length)
    return batch.to(model.embed.weight.device)
