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
    start = 0
    for image, count in zip(images, counts, strict=True):
        height, width, _ = image.shape
        rows = patches[start : start + count].reshape(
            height // patch, width // patch, patch, patch, CHANNELS
        )
        grid = image.reshape(height // patch, patch, width // patch, patch, CHANNELS)
        np.copyto(rows, grid.transpose(0, 2, 1, 3, 4))
        _normalise(rows, mean, std)
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
    for place, image in zip(padded, images, strict=True):
        inside = place[:, : image.shape[0], : image.shape[1]]
        np.copyto(inside, image.transpose(2, 0, 1))
        _normalise(inside.transpose(1, 2, 0), mean, std)
    return padded


def _normalise(pixels: Float32, mean: Channels, std: Channels) -> None:
    """In place: float32 [..., 3] from 0 to 255 to what the encoders expect."""
    pixels /= BRIGHTEST
    for values, change in ((mean, np.subtract), (std, np.divide)):
        if len(set(values)) == 1:
            change(pixels, np.float32(values[0]), out=pixels)
        else:
            change(pixels, np.array(values, dtype=np.float32), out=pixels)
