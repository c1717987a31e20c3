"""A fixed linear autoencoder that stands in for a variational one.

Each patch of pixels keeps its lowest frequencies: the first columns of a two-dimensional cosine
transform, in order of frequency, for each colour alike. Nothing is learnt, and decoding gives the
closest image of those frequencies. A trained VAE has the same shapes.

Letters: d pixels of a latent's side, C = 3 * k channels, E images, g latents of all of them.
"""

import math

import torch
from torch import Tensor, nn

from megapack.model.multimodal_config import COLOURS


class CosineAutoencoder(nn.Module):
    """Pixels to latents and back.

    Args:
        downsample: d.
        channels: C, a multiple of 3 up to 3 * d * d.
    """

    basis: Tensor

    def __init__(self, *, downsample: int, channels: int) -> None:
        super().__init__()
        self.downsample = downsample
        self.register_buffer("basis", cosine_basis(downsample)[: channels // COLOURS])

    def encode(self, images: Tensor, shapes: Tensor) -> Tensor:
        """Latents of images, row-major, one image after the other.

        Args:
            images: [E, 3, H, W], H and W multiples of d, each image in the upper left corner.
            shapes: int64 [E, 2], latents high and wide.

        Returns:
            [g, C], the k numbers of each colour together; the first of them is its mean.
        """
        size = self.downsample
        count, colours, height, width = images.shape
        rows, columns = height // size, width // size
        patches = images.reshape(count, colours, rows, size, columns, size)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(-2)
        device = images.device
        inside = (torch.arange(rows, device=device)[None, :, None] < shapes[:, :1, None]) & (
            torch.arange(columns, device=device)[None, None, :] < shapes[:, 1:, None]
        )
        return (patches[inside] @ self.basis.T).flatten(-2) / size

    def decode(self, latents: Tensor, *, height: int, width: int) -> Tensor:
        """The image [3, height * d, width * d] of [height * width, C] latents."""
        size = self.downsample
        patches = latents.reshape(height, width, COLOURS, -1) @ self.basis * size
        patches = patches.reshape(height, width, COLOURS, size, size)
        return patches.permute(2, 0, 3, 1, 4).reshape(COLOURS, height * size, width * size)


def cosine_basis(size: int) -> Tensor:
    """Orthonormal cosine transform of patches [size, size].

    Returns:
        float32 [size * size, size * size], a function a row, by the sum of its frequencies.
    """
    place = torch.arange(size, dtype=torch.float64) + 0.5
    frequency = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(math.pi / size * frequency[:, None] * place[None]) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    both = torch.einsum("ui,vj->uvij", waves, waves).reshape(size * size, size * size)
    order = sorted(range(size * size), key=lambda one: (sum(divmod(one, size)), one))
    return both[order].to(torch.float32)
