"""`MixtureModel`: a small model that understands and generates images, over packed multimodal rows.

One decoder with two sets of weights (`multimodal_block`), text through an embedding, images to
understand through a patch encoder, images to generate as latents of a fixed autoencoder with flow
matching. It shows that a row carries everything such a model needs; it is no published model.

Letters: L positions of the row, g latents, C channels of a latent, H hidden, c positions with a
cross-entropy, m latents with a squared error.
"""

import math

import torch
from torch import Tensor, nn

from megapack.batch.multimodal_batch import MultimodalBatch
from megapack.model.multimodal_block import Kinds, MixtureLayer, Route, rotary_of
from megapack.model.multimodal_config import MixtureConfig, check_batch
from megapack.model.multimodal_flow import NoisyLatents, mixed, noise_of, times_of
from megapack.model.multimodal_loss import RowLosses, row_losses
from megapack.model.multimodal_mask import ColumnKernel, attention_of
from megapack.model.multimodal_vae import CosineAutoencoder
from megapack.model.multimodal_vit import PatchEncoder

_TIME_FEATURES = 64
_TIME_SCALE = 1000.0


class MixtureModel(nn.Module):
    """The model.

    Args:
        config: its sizes.
        kernel: of attention under mask columns; None for the device's best.
    """

    def __init__(self, config: MixtureConfig, *, kernel: ColumnKernel | None = None) -> None:
        super().__init__()
        self.config = config
        self.kernel = kernel
        size = config.hidden_size
        self.embed = nn.Embedding(config.vocab_size, size)
        self.vit = PatchEncoder(config)
        self.vae = CosineAutoencoder(
            downsample=config.vae_downsample, channels=config.latent_channels
        )
        self.from_latent = nn.Linear(config.latent_channels, size)
        self.latent_place = nn.Embedding(config.vae_max_side**2, size)
        self.time = nn.Sequential(nn.Linear(_TIME_FEATURES, size), nn.SiLU(), nn.Linear(size, size))
        self.layers = nn.ModuleList(MixtureLayer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(size)
        self.generation_norm = nn.RMSNorm(size)
        self.lm_head = nn.Linear(size, config.vocab_size, bias=False)
        self.velocity_head = nn.Linear(size, config.latent_channels)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights; floats of a batch are cast to it."""
        return self.embed.weight.dtype

    def initialize(self, *, seed: int) -> None:
        """Draw all weights anew from a generator of their own.

        The head of velocities begins at zero, so that the first squared error is that of noise -
        clean itself.
        """
        generator = torch.Generator(device=self.embed.weight.device).manual_seed(seed)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Embedding):
                    module.weight.normal_(std=0.02, generator=generator)
                elif isinstance(module, nn.Linear):
                    std = 1 / math.sqrt(module.in_features)
                    module.weight.normal_(std=std, generator=generator)
                    if module.bias is not None:
                        module.bias.zero_()
            self.velocity_head.weight.zero_()

    def forward(self, batch: MultimodalBatch, *, seed: int) -> RowLosses:
        """Sums of both losses over a row, and what they are to be divided by.

        Args:
            batch: a row.
            seed: of the noise; another for each step.

        Raises:
            ConfigError: the batch is beyond the model's sizes.
            ContractError: the batch does not agree with itself.
        """
        check_batch(self.config, batch)
        clean = self.latents(batch)
        noise = noise_of(batch, self.config.latent_channels, seed=seed).to(self.dtype)
        times = times_of(batch.timesteps.to(self.dtype), shift=self.config.timestep_shift)
        hidden = self.hidden(batch, mixed(clean, noise, times))
        predicted = torch.searchsorted(batch.vae_index, batch.mse_index)
        return row_losses(
            self.lm_head(hidden[batch.ce_index]),
            self.velocity_head(hidden[batch.mse_index]),
            (noise - clean)[predicted],
            batch,
        )

    def latents(self, batch: MultimodalBatch) -> Tensor:
        """Clean latents [g, C] of a row's VAE images."""
        if not len(batch.vae_index):
            return torch.zeros(
                0, self.config.latent_channels, dtype=self.dtype, device=batch.text_ids.device
            )
        return self.vae.encode(batch.vae_images.to(self.dtype), batch.vae_shapes)

    def hidden(self, batch: MultimodalBatch, noisy: NoisyLatents) -> Tensor:
        """Features [L, H] of every position, normed.

        Args:
            batch: a row.
            noisy: what is seen of its VAE images.
        """
        text = self.embed(batch.text_ids)
        if len(batch.vit_index):
            patches = self.vit(
                batch.vit_tokens.to(self.dtype), batch.vit_position_ids, batch.vit_lengths
            )
            text = torch.cat((text, patches))
        route = Route(
            understanding=torch.cat((batch.text_index, batch.vit_index)),
            generation=batch.vae_index,
        )
        kinds = Kinds(
            understanding=text,
            generation=self.from_latent(noisy.latents)
            + self.time(_waves(noisy.times).to(self.dtype))
            + self.latent_place(batch.vae_position_ids),
        )
        features = self.config.hidden_size // self.config.num_heads
        cosine, sine = rotary_of(
            batch.position_ids, features=features, base=self.config.rotary_base
        )
        rotary = (cosine.to(self.dtype), sine.to(self.dtype))
        attention = attention_of(batch, self.kernel)
        for layer in self.layers:
            kinds = layer(kinds, route, rotary, attention)
        return route.merged(
            Kinds(
                understanding=self.norm(kinds.understanding),
                generation=self.generation_norm(kinds.generation),
            )
        )


def _waves(times: Tensor) -> Tensor:
    """Cosines and sines [g, 64] of times, from slow to fast."""
    half = _TIME_FEATURES // 2
    rates = torch.logspace(0, -4, half, dtype=torch.float64, device=times.device)
    angles = times[:, None].double() * _TIME_SCALE * rates
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
