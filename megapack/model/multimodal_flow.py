"""Flow matching on latents: noise, noised latents, and what is to be predicted.

At time t a latent is (1 - t) * clean + t * noise, and the model predicts noise - clean, the way
from one to the other. Clean images stand at t = 0. Noise is a function of a seed and of which
sample it is for, so that a sample gets the same noise wherever it is packed.

Letters: g latents of a row, C channels.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from megapack.batch.multimodal_batch import MultimodalBatch
from megapack.records.multimodal_sample import SampleRef

_SEED_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoisyLatents:
    """What the decoder sees of the VAE images of a row.

    Attributes:
        latents: [g, C].
        times: [g], 0 for clean, 1 for noise alone.
    """

    latents: Tensor
    times: Tensor


def times_of(timesteps: Tensor, *, shift: float) -> Tensor:
    """Times in [0, 1) of noise levels before the sigmoid; 0 for -inf."""
    drawn = torch.sigmoid(timesteps)
    return shift * drawn / (1 + (shift - 1) * drawn)


def mixed(clean: Tensor, noise: Tensor, times: Tensor) -> NoisyLatents:
    """Latents on their way from clean to noise.

    Args:
        clean: [g, C].
        noise: [g, C].
        times: [g].
    """
    part = times[:, None]
    return NoisyLatents(latents=(1 - part) * clean + part * noise, times=times)


def noise_of(batch: MultimodalBatch, channels: int, *, seed: int) -> Tensor:
    """Standard normal noise of every latent of a row, sample by sample.

    Args:
        batch: the row.
        channels: C.
        seed: another for each step.

    Returns:
        float32 [g, C], on the device of `vae_index`; drawn on the CPU, so the same on every device.
    """
    ends = torch.tensor(batch.sample_lengths).cumsum(0)
    index = batch.vae_index.cpu()
    counts = torch.bincount(
        torch.searchsorted(ends, index, right=True), minlength=len(batch.samples)
    )
    parts = [
        torch.randn(count, channels, generator=_generator(placed.ref, seed))
        for placed, count in zip(batch.samples, counts.tolist(), strict=True)
        if count
    ]
    return torch.cat([torch.zeros(0, channels), *parts]).to(batch.vae_index.device)


def _generator(ref: SampleRef, seed: int) -> torch.Generator:
    name = "\0".join((str(seed), ref.group, ref.source, ref.file, str(ref.row), str(ref.reading)))
    digest = hashlib.sha256(name.encode()).digest()[:_SEED_BYTES]
    return torch.Generator().manual_seed(int.from_bytes(digest) >> 1)
