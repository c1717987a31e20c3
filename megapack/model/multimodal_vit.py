"""The image encoder for understanding: patches that see the patches of their own image.

Letters: v patches of all images, D numbers of a patch, F features, A images.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from megapack.model.multimodal_config import COLOURS, MixtureConfig


class PatchEncoder(nn.Module):
    """Patches to positions of the decoder."""

    def __init__(self, config: MixtureConfig) -> None:
        super().__init__()
        size = config.vit_hidden_size
        self.project = nn.Linear(COLOURS * config.vit_patch_size**2, size)
        self.place = nn.Embedding(config.vit_max_side**2, size)
        self.layers = nn.ModuleList(
            _Layer(size, config.num_heads) for _ in range(config.vit_layers)
        )
        self.norm = nn.LayerNorm(size)
        self.connect = nn.Sequential(
            nn.Linear(size, config.hidden_size),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.hidden_size, config.hidden_size),
        )
        self.place_after = nn.Embedding(config.vit_max_side**2, config.hidden_size)

    def forward(self, patches: Tensor, places: Tensor, lengths: Tensor) -> Tensor:
        """Features of patches.

        Args:
            patches: [v, D].
            places: int64 [v], in the grid of the largest image.
            lengths: int64 [A], patches of each image; their sum is v.

        Returns:
            [v, hidden].
        """
        hidden = self.project(patches) + self.place(places)
        images = images_by_length(lengths.tolist(), device=patches.device)
        for layer in self.layers:
            hidden = layer(hidden, images)
        features: Tensor = self.connect(self.norm(hidden)) + self.place_after(places)
        return features


def images_by_length(lengths: Sequence[int], *, device: torch.device) -> list[Tensor]:
    """Patch numbers of images, those of one length together.

    Args:
        lengths: patches of each image.
        device: of what is returned.

    Returns:
        For each length int64 [images, length]; each patch stands in one of them.
    """
    starts: dict[int, list[int]] = defaultdict(list)
    start = 0
    for length in lengths:
        starts[length].append(start)
        start += length
    return [
        torch.tensor(first, device=device)[:, None] + torch.arange(length, device=device)
        for length, first in sorted(starts.items())
    ]


class _Layer(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.mlp = nn.Sequential(
            nn.LayerNorm(size),
            nn.Linear(size, 2 * size),
            nn.GELU(approximate="tanh"),
            nn.Linear(2 * size, size),
        )

    def forward(self, hidden: Tensor, images: list[Tensor]) -> Tensor:
        qkv = self.qkv(self.norm(hidden))
        attended = torch.zeros_like(hidden)
        for patches in images:
            count, length = patches.shape
            of_images = qkv[patches].reshape(count, length, 3, self.heads, -1)
            q, k, v = of_images.permute(2, 0, 3, 1, 4)
            out = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
            attended = attended.index_copy(0, patches.flatten(), out.reshape(count * length, -1))
        hidden = hidden + self.out(attended)
        updated: Tensor = hidden + self.mlp(hidden)
        return updated
