"""Patches or latents of an image: how many high and wide, and the ids of where they lie."""

from dataclasses import dataclass

from megapack.errors import ContractError
from megapack.multimodal.config import VisionConfig
from megapack.multimodal.positions import patch_positions
from megapack.records.multimodal_sample import Int32, PlanItem, SpanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Patches of an image.

    Attributes:
        high: from top to bottom.
        wide: from left to right.
    """

    high: int
    wide: int

    @property
    def count(self) -> int:
        """Patches of the image."""
        return self.high * self.wide


def grid_of(item: PlanItem, vision: VisionConfig) -> Grid:
    """Patches of a VIT image or latents of a VAE image.

    Raises:
        ContractError: text, or sides that are no multiple of the patch.
    """
    patch = vision.vit_patch_size if item.kind is SpanKind.VIT else vision.vae_downsample
    high, odd_high = divmod(item.height, patch)
    wide, odd_wide = divmod(item.width, patch)
    if item.kind is SpanKind.TEXT or odd_high or odd_wide or not high * wide:
        raise ContractError(
            f"grid: expected an image with sides that are multiples of {patch}, found "
            f"{item.kind}, {item.width} by {item.height} pixels."
        )
    return Grid(high=high, wide=wide)


def grid_positions(item: PlanItem, vision: VisionConfig) -> Int32:
    """Position ids of an image's patches or latents, int32 [patches], read-only."""
    grid = grid_of(item, vision)
    side = vision.vit_max_side if item.kind is SpanKind.VIT else vision.vae_max_side
    return patch_positions(grid.high, grid.wide, side, vision.positions)
