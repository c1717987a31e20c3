"""Normalised pixels of a row: patches for the vision transformer, padded images for the VAE.

Pixels are normalised as torchvision does it, (x / 255 - mean) / std in float32 and in that order,
so that values are equal bit by bit.
"""

from collections.abc import Sequence

import numpy as np

from megapack.multimodal.config import Channels
from megapack.records.multimodal_sample import Float32, UInt8

CHANNELS = 3
BRIGHTEST = np.float32(255)


def vit_patches(images: Sequence[UInt8], patch: int, *, mean: Channels, std: Channels) -> Float32:
    """Patches of all images, one after the other.

    Args:
        images: uint8 [h, w, 3] each, sides multiples of the patch.
        patch: p, pixels of its side.
        mean: of each channel.
        std: of each channel.

    Returns:
        float32 [v, 3 * p * p]: patches row by row; in a patch pixels row by row, channels last.
    """
    counts = [image.shape[0] * image.shape[1] // patch**2 for image in images]
    patches = np.empty((sum(counts), CHANNELS * patch**2), dtype=np.float32)
    means, stds = (
        np.tile(np.asarray(values, dtype=np.float32), patch**2) for values in (mean, std)
    )
    start = 0
    for image, count in zip(images, counts, strict=True):
        high, wide = image.shape[0] // patch, image.shape[1] // patch
        rows = patches[start : start + count]
        grid = image.reshape(high, patch, wide, patch, CHANNELS).transpose(0, 2, 1, 3, 4)
        np.copyto(rows.reshape(high, wide, patch, patch, CHANNELS), grid)
        _normalise(rows, means, stds)
        start += count
    return patches


def padded_images(images: Sequence[UInt8], *, mean: Channels, std: Channels) -> Float32:
    """Images with channels first, as large as the largest; zeros to the right and below.

    Args:
        images: E of uint8 [h, w, 3].
        mean: of each channel.
        std: of each channel.

    Returns:
        float32 [E, 3, H, W].
    """
    high = max((image.shape[0] for image in images), default=0)
    wide = max((image.shape[1] for image in images), default=0)
    padded = np.zeros((len(images), CHANNELS, high, wide), dtype=np.float32)
    means, stds = (np.asarray(values, dtype=np.float32)[:, None, None] for values in (mean, std))
    for place, image in zip(padded, images, strict=True):
        inside = place[:, : image.shape[0], : image.shape[1]]
        np.copyto(inside, image.transpose(2, 0, 1))
        _normalise(inside, means, stds)
    return padded


def _normalise(pixels: Float32, mean: Float32, std: Float32) -> None:
    """In place: float32 from 0 to 255 to what the encoders expect; mean and std broadcast."""
    pixels /= BRIGHTEST
    pixels -= mean
    pixels /= std
