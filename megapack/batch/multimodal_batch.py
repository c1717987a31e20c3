"""`MultimodalBatch`: a packed multimodal row as tensors."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from megapack.records.multimodal_row import PlacedSample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MultimodalBatch:
    """Fields of `MultimodalRow` on a device; letters and meanings are explained there.

    Attributes:
        length: L.
        padded_length: T, at least L: what flex attention runs over.
        samples: provenance, in order.
        sample_lengths: S.
        split_lengths: P.
        split_samples: P.
        attention_modes: P, by value.
        position_ids: int64 [L].
        text_ids: int64 [t].
        text_index: int64 [t].
        label_ids: int64 [c].
        ce_index: int64 [c].
        ce_weights: float32 [c].
        vit_tokens: float32 [v, D].
        vit_index: int64 [v].
        vit_position_ids: int64 [v].
        vit_lengths: int64 [A].
        vae_images: float32 [E, 3, H, W].
        vae_shapes: int64 [E, 2].
        vae_index: int64 [g].
        vae_position_ids: int64 [g].
        timesteps: float32 [g].
        mse_index: int64 [m].
        masks: S tensors, bool [n, n] of a sample with n positions, True where the query of a row
            sees the key of a column; none with flex attention.
        mask_columns: int32 [3, T], or None with nested masks: number of the sample of each
            position (its own at padding), of its split where all of the split is seen (FULL and
            NOISE, else -1), and of its split where no other sees it (NOISE, else -1).
    """

    length: int
    padded_length: int
    samples: tuple[PlacedSample, ...]
    sample_lengths: tuple[int, ...]
    split_lengths: tuple[int, ...]
    split_samples: tuple[int, ...]
    attention_modes: tuple[str, ...]
    position_ids: Tensor
    text_ids: Tensor
    text_index: Tensor
    label_ids: Tensor
    ce_index: Tensor
    ce_weights: Tensor
    vit_tokens: Tensor
    vit_index: Tensor
    vit_position_ids: Tensor
    vit_lengths: Tensor
    vae_images: Tensor
    vae_shapes: Tensor
    vae_index: Tensor
    vae_position_ids: Tensor
    timesteps: Tensor
    mse_index: Tensor
    masks: tuple[Tensor, ...] = ()
    mask_columns: Tensor | None = None

    def to(self, device: torch.device | str) -> Self:
        """The batch on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """The batch in page-locked memory; data loaders call it."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, object] = {
            field.name: change(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, masks=tuple(map(change, self.masks)), **changed)  # type: ignore[arg-type]
