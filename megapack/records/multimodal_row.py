"""`MultimodalRow`: several samples in one row, with every index that a model needs.

Letters: L positions of the row, S samples, P splits, t text tokens (begin, end, start and end of
image included), c positions with a cross-entropy, A VIT images, v their patches of p by p pixels,
D = 3 * p * p, E VAE images, g their latents, m latents with a squared error, H and W of the largest
VAE image.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megapack.records.multimodal_sample import AttentionMode, Float32, Int32, SampleRef

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSample:
    """Provenance of one sample in a row.

    Attributes:
        ref: where it comes from.
        start: its first position in the row.
        length: positions written.
        dropped: kinds of the conditions that were dropped, in order of items.
    """

    ref: SampleRef
    start: int
    length: int
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MultimodalRow:
    """One packed row.

    All indexes are positions of the row, ascending. A label stands at the position that predicts
    it: `label_ids[i]` is what the token at `ce_index[i]` is trained to predict.

    Attributes:
        length: L, what was written; no padding.
        samples: S, in order.
        sample_lengths: int32 [S]; their sum is L.
        split_lengths: int32 [P], each at least 1; their sum is L.
        split_samples: int32 [P], ascending: which sample a split belongs to.
        attention_modes: P.
        position_ids: int32 [L], from 0 in each sample; all tokens of an image share one.
        text_ids: int32 [t].
        text_index: int32 [t].
        label_ids: int32 [c].
        ce_index: int32 [c].
        ce_weights: float32 [c].
        vit_tokens: float32 [v, D], normalised pixels of each patch, row-major, channels last.
        vit_index: int32 [v].
        vit_position_ids: int32 [v], row of the patch * side + column, see `multimodal.positions`.
        vit_lengths: int32 [A], patches of each image.
        vae_images: float32 [E, 3, H, W], normalised; zeros to the right of and below an image.
        vae_shapes: int32 [E, 2], latents high and wide.
        vae_index: int32 [g].
        vae_position_ids: int32 [g].
        timesteps: float32 [g], before the sigmoid; -inf for clean images.
        mse_index: int32 [m].
    """

    length: int
    samples: tuple[PlacedSample, ...]
    sample_lengths: Int32
    split_lengths: Int32
    split_samples: Int32
    attention_modes: tuple[AttentionMode, ...]
    position_ids: Int32
    text_ids: Int32
    text_index: Int32
    label_ids: Int32
    ce_index: Int32
    ce_weights: Float32
    vit_tokens: Float32
    vit_index: Int32
    vit_position_ids: Int32
    vit_lengths: Int32
    vae_images: Float32
    vae_shapes: Int32
    vae_index: Int32
    vae_position_ids: Int32
    timesteps: Float32
    mse_index: Int32
