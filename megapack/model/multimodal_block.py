"""One layer of a mixture of transformers: two sets of weights, one attention.

Positions for understanding (text and VIT patches) and for generation (VAE latents) have norms,
projections and MLPs of their own; keys and values of both meet in one attention under the row's
mask. The two kinds are kept apart between layers, so nothing is computed for the wrong one.

Letters: L positions of the row, u of them for understanding, g for generation, H hidden, s features
of a head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from megapack.model.multimodal_config import MixtureConfig
from megapack.model.multimodal_mask import Attention


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Route:
    """Where the two kinds of positions lie in the row.

    Attributes:
        understanding: int64 [u].
        generation: int64 [g].
    """

    understanding: Tensor
    generation: Tensor

    def merged(self, kinds: "Kinds") -> Tensor:
        """[L, ...], every position where it lies in the row."""
        length = len(self.understanding) + len(self.generation)
        row = kinds.understanding.new_zeros(length, *kinds.understanding.shape[1:])
        row = row.index_copy(0, self.understanding, kinds.understanding)
        return row.index_copy(0, self.generation, kinds.generation)

    def parted(self, row: Tensor) -> "Kinds":
        """The two kinds of [L, ...]."""
        return Kinds(
            understanding=row.index_select(0, self.understanding),
            generation=row.index_select(0, self.generation),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kinds:
    """Features of the two kinds of positions.

    Attributes:
        understanding: [u, ...].
        generation: [g, ...].
    """

    understanding: Tensor
    generation: Tensor


class MixtureLayer(nn.Module):
    """Attention and MLP with the weights of each position's kind."""

    def __init__(self, config: MixtureConfig) -> None:
        super().__init__()
        self.understanding = _Weights(config)
        self.generation = _Weights(config)

    def forward(
        self, kinds: Kinds, route: Route, rotary: tuple[Tensor, Tensor], attention: Attention
    ) -> Kinds:
        """One layer further.

        Args:
            kinds: [u, H] and [g, H].
            route: where they lie.
            rotary: cosine and sine [L, 1, s] of each position's id.
            attention: under the row's mask.
        """
        projected = Kinds(
            understanding=self.understanding.project(kinds.understanding),
            generation=self.generation.project(kinds.generation),
        )
        q, k, v = route.merged(projected).unbind(1)
        attended = route.parted(attention(turned(q, rotary), turned(k, rotary), v).flatten(1))
        return Kinds(
            understanding=self.understanding.finish(kinds.understanding, attended.understanding),
            generation=self.generation.finish(kinds.generation, attended.generation),
        )


class _Weights(nn.Module):
    """Norms, projections and MLP of one kind of positions."""

    def __init__(self, config: MixtureConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.ffn_size
        self.heads = config.num_heads
        self.norm = nn.RMSNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.q_norm = nn.RMSNorm(size // self.heads)
        self.k_norm = nn.RMSNorm(size // self.heads)
        self.out = nn.Linear(size, size, bias=False)
        self.mlp_norm = nn.RMSNorm(size)
        self.gate_up = nn.Linear(size, 2 * inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)

    def project(self, hidden: Tensor) -> Tensor:
        """Queries, keys and values [positions, 3, heads, s]."""
        q, k, v = self.qkv(self.norm(hidden)).unflatten(-1, (3, self.heads, -1)).unbind(1)
        return torch.stack((self.q_norm(q), self.k_norm(k), v), dim=1)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Both residual branches added to [positions, H]."""
        hidden = hidden + self.out(attended)
        gate, up = self.gate_up(self.mlp_norm(hidden)).chunk(2, dim=-1)
        finished: Tensor = hidden + self.down(functional.silu(gate) * up)
        return finished


def rotary_of(position_ids: Tensor, *, features: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of positions, as angles of pairs of features.

    Args:
        position_ids: int64 [L].
        features: s, even.
        base: of the wavelengths.

    Returns:
        float64 [L, 1, s] each.
    """
    pairs = torch.arange(0, features, 2, dtype=torch.float64, device=position_ids.device)
    angles = position_ids[:, None, None] * base ** (-pairs / features)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def turned(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """[L, heads, s] turned by the angles of its positions."""
    cosine, sine = rotary
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine
