"""Sizes of the multimodal model, and whether a batch is within them.

The check reads the largest ids, which waits for a device.
"""

from dataclasses import dataclass

from torch import Tensor

from megapack.batch.multimodal_batch import MultimodalBatch
from megapack.errors import ConfigError, ContractError

COLOURS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig:
    """Sizes of `MixtureModel`.

    Attributes:
        vocab_size: ids of the tokenizer.
        hidden_size: features of a position.
        num_layers: of the decoder.
        num_heads: of the decoder and the image encoder; a head has an even number of features.
        ffn_size: inner features of the decoder's MLPs.
        vit_hidden_size: features of a patch in the image encoder.
        vit_layers: of the image encoder.
        vit_patch_size: pixels of a side of a patch.
        vit_max_side: patches of a side, at most.
        vae_downsample: pixels of a side of a latent.
        vae_max_side: latents of a side, at most.
        latent_channels: numbers of a latent, the same for each colour.
        timestep_shift: above 1 draws noise levels towards pure noise.
        rotary_base: of the wavelengths of positions.
    """

    vocab_size: int
    hidden_size: int = 128
    num_layers: int = 4
    num_heads: int = 4
    ffn_size: int = 256
    vit_hidden_size: int = 64
    vit_layers: int = 2
    vit_patch_size: int = 14
    vit_max_side: int = 70
    vae_downsample: int = 16
    vae_max_side: int = 32
    latent_channels: int = 12
    timestep_shift: float = 1.0
    rotary_base: float = 10000.0

    def __post_init__(self) -> None:
        for name in ("hidden_size", "vit_hidden_size"):
            size = getattr(self, name)
            if size % (2 * self.num_heads):
                raise ConfigError(
                    f"MixtureConfig.{name}: expected a multiple of 2 * num_heads = "
                    f"{2 * self.num_heads}, found {size}."
                )
        most = COLOURS * self.vae_downsample**2
        if self.latent_channels % COLOURS or not 0 < self.latent_channels <= most:
            raise ConfigError(
                f"MixtureConfig.latent_channels: expected a multiple of {COLOURS} up to "
                f"3 * vae_downsample^2 = {most}, found {self.latent_channels}."
            )
        if self.timestep_shift <= 0:
            raise ConfigError(
                f"MixtureConfig.timestep_shift: expected more than 0, found {self.timestep_shift}."
            )


def check_batch(config: MixtureConfig, batch: MultimodalBatch) -> None:
    """Refuse a batch that the model's tables have no entries for.

    Raises:
        ConfigError: ids, patches or images beyond the configured sizes.
        ContractError: the positions of texts, patches and latents are not those of the row.
    """
    for name, field, found, limit in (
        ("vocab_size", "text_ids", _largest(batch.text_ids), config.vocab_size),
        ("vocab_size", "label_ids", _largest(batch.label_ids), config.vocab_size),
        (
            "vit_max_side",
            "vit_position_ids",
            _largest(batch.vit_position_ids),
            config.vit_max_side**2,
        ),
        (
            "vae_max_side",
            "vae_position_ids",
            _largest(batch.vae_position_ids),
            config.vae_max_side**2,
        ),
    ):
        if found >= limit:
            raise ConfigError(
                f"MultimodalBatch.{field}: expected ids below {limit}, as "
                f"MixtureConfig.{name} = {getattr(config, name)} says, found {found}. Raise it."
            )
    features = COLOURS * config.vit_patch_size**2
    if len(batch.vit_tokens) and batch.vit_tokens.shape[1] != features:
        raise ConfigError(
            f"MultimodalBatch.vit_tokens: expected {features} numbers a patch, as "
            f"MixtureConfig.vit_patch_size = {config.vit_patch_size} says, found "
            f"{batch.vit_tokens.shape[1]}."
        )
    _check_counts(config, batch)


def _check_counts(config: MixtureConfig, batch: MultimodalBatch) -> None:
    """Every position is text, patch or latent, and images have as many latents as they say."""
    written = len(batch.text_index) + len(batch.vit_index) + len(batch.vae_index)
    if not written == batch.length == sum(batch.sample_lengths):
        raise ContractError(
            f"MultimodalBatch: expected text, patches and latents at all {batch.length} positions "
            f"of its samples ({sum(batch.sample_lengths)}), found {written}."
        )
    latents = int(batch.vae_shapes.prod(dim=-1).sum()) if len(batch.vae_shapes) else 0
    if latents != len(batch.vae_index):
        raise ContractError(
            f"MultimodalBatch.vae_shapes: expected {len(batch.vae_index)} latents in all, found "
            f"{latents}."
        )
    height, width = batch.vae_images.shape[-2:]
    needed = batch.vae_shapes.amax(dim=0).tolist() if latents else [0, 0]
    if latents and [height, width] != [config.vae_downsample * side for side in needed]:
        raise ConfigError(
            f"MultimodalBatch.vae_images: expected {needed} latents of "
            f"MixtureConfig.vae_downsample = {config.vae_downsample} pixels a side, found images "
            f"of {height} x {width}."
        )


def _largest(ids: Tensor) -> int:
    return int(ids.max()) if len(ids) else -1
