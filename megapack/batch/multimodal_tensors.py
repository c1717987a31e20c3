"""A multimodal row as tensors, and under the names that BAGEL's own training code reads."""

import numpy as np
import torch
from torch import Tensor

from megapack.batch.multimodal_batch import MultimodalBatch
from megapack.errors import ConfigError
from megapack.multimodal.attention import mask_columns, nested_masks
from megapack.multimodal.config import MaskForm
from megapack.records.multimodal_row import MultimodalRow

_INDEXES = (
    "position_ids",
    "text_ids",
    "text_index",
    "label_ids",
    "ce_index",
    "vit_index",
    "vit_position_ids",
    "vit_lengths",
    "vae_shapes",
    "vae_index",
    "vae_position_ids",
    "mse_index",
)
_FLOATS = ("ce_weights", "vit_tokens", "vae_images", "timesteps")


def to_batch(row: MultimodalRow, *, mask: MaskForm, padded_length: int) -> MultimodalBatch:
    """The row on the host; indexes become int64, the rest is not copied.

    Args:
        row: as it was assembled.
        mask: masks of each sample, or columns for flex attention.
        padded_length: positions that flex attention runs over.

    Raises:
        ConfigError: the row is longer than `padded_length`, or there is no such form.
    """
    if row.length > padded_length:
        raise ConfigError(
            f"padded_length: expected at least the {row.length} positions of the row, found "
            f"{padded_length}. Use limits.max_tokens or more."
        )
    tensors = {name: _index(getattr(row, name)) for name in _INDEXES}
    tensors |= {name: torch.from_numpy(getattr(row, name)) for name in _FLOATS}
    nested = MaskForm.of(mask) is MaskForm.NESTED
    return MultimodalBatch(
        length=row.length,
        padded_length=padded_length,
        samples=row.samples,
        sample_lengths=tuple(row.sample_lengths.tolist()),
        split_lengths=tuple(row.split_lengths.tolist()),
        split_samples=tuple(row.split_samples.tolist()),
        attention_modes=tuple(mode.value for mode in row.attention_modes),
        masks=tuple(map(torch.from_numpy, nested_masks(row))) if nested else (),
        mask_columns=None if nested else torch.from_numpy(mask_columns(row, padded_length)),
        **tensors,
    )


def bagel_fields(batch: MultimodalBatch) -> dict[str, object]:
    """The batch under the names of `PackedDataset.to_tensor`.

    As there, fields of a kind that the row has none of are left out. A row without padding gets no
    padding split; the published code makes one of length 0.
    """
    fields: dict[str, object] = {
        "sequence_length": batch.length,
        "sample_lens": list(batch.sample_lengths),
        "packed_text_ids": batch.text_ids,
        "packed_text_indexes": batch.text_index,
        "packed_position_ids": batch.position_ids,
        "batch_data_indexes": [
            {
                "dataset_name": sample.ref.group,
                "data_indexes": [sample.ref.source, sample.ref.file, sample.ref.row],
                "reading": sample.ref.reading,
            }
            for sample in batch.samples
        ],
    }
    return fields | _attention(batch) | _images(batch) | _losses(batch)


def _attention(batch: MultimodalBatch) -> dict[str, object]:
    """Masks of 0 and -inf, or splits with the one of the padding."""
    if batch.mask_columns is None:
        return {"nested_attention_masks": [_additive(mask) for mask in batch.masks]}
    padding = [batch.padded_length - batch.length] if batch.padded_length > batch.length else []
    return {
        "sample_lens": [*batch.sample_lengths, *padding],
        "split_lens": [*batch.split_lengths, *padding],
        "attn_modes": [*batch.attention_modes, *("causal" for _ in padding)],
    }


def _images(batch: MultimodalBatch) -> dict[str, object]:
    fields: dict[str, object] = {}
    if len(batch.vae_shapes):
        fields |= {
            "padded_images": batch.vae_images,
            "patchified_vae_latent_shapes": [tuple(shape) for shape in batch.vae_shapes.tolist()],
            "packed_latent_position_ids": batch.vae_position_ids,
            "packed_vae_token_indexes": batch.vae_index,
            "packed_timesteps": batch.timesteps,
            "mse_loss_indexes": batch.mse_index,
        }
    if len(batch.vit_lengths):
        fields |= {
            "packed_vit_tokens": batch.vit_tokens,
            "packed_vit_position_ids": batch.vit_position_ids,
            "packed_vit_token_indexes": batch.vit_index,
            "vit_token_seqlens": batch.vit_lengths,
        }
    return fields


def _losses(batch: MultimodalBatch) -> dict[str, object]:
    if not len(batch.label_ids):
        return {}
    return {
        "packed_label_ids": batch.label_ids,
        "ce_loss_indexes": batch.ce_index,
        "ce_loss_weights": batch.ce_weights,
    }


def _additive(mask: Tensor) -> Tensor:
    """float32: 0 where a key is seen, -inf elsewhere."""
    return torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))


def _index(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))
