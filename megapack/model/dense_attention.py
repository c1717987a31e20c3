"""Attention of a dense batch: one scaled_dot_product_attention over the rectangle.

The mask is the authority. Where it is causal and nothing else, which is looked up once for a
microbatch, the kernel is told so instead, which costs no S * S bias. Padding stands behind each
document, so no document sees it; its outputs are finite and mean nothing.
Letters: B rows, S width, h and g = query and key/value heads of this rank, d = head size.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.utils.weak import WeakTensorKeyDictionary

from megapack.errors import ContractError

_CAUSAL: "WeakTensorKeyDictionary" = WeakTensorKeyDictionary()
_MASK_DIMS = 4


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    *,
    scale: float,
) -> torch.Tensor:
    """Attend inside each row of the rectangle.

    Args:
        query: [S, B, h, d], positions already rotated.
        key: [S, B, g, d].
        value: [S, B, g, d].
        attention_mask: bool [B or 1, 1, S, S], True where a query may not see a key; every query
            sees at least one.
        scale: of the scores.

    Returns:
        [S, B, h * d].

    Raises:
        ContractError: the mask has another shape.
    """
    size = query.shape[0]
    if attention_mask.dim() != _MASK_DIMS or attention_mask.shape[2:] != (size, size):
        raise ContractError(
            f"dense attention: expected a mask [B, 1, {size}, {size}], found "
            f"{tuple(attention_mask.shape)}."
        )
    causal = _is_causal(attention_mask)
    out = F.scaled_dot_product_attention(
        query.permute(1, 2, 0, 3),
        key.permute(1, 2, 0, 3),
        value.permute(1, 2, 0, 3),
        attn_mask=None if causal else ~attention_mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=True,
    )
    return out.permute(2, 0, 1, 3).flatten(2)


def _is_causal(mask: torch.Tensor) -> bool:
    """Whether the mask hides what comes later and nothing else; kept as long as the mask lives."""
    if mask not in _CAUSAL:
        later = torch.ones(mask.shape[2:], dtype=torch.bool, device=mask.device).triu(1)
        _CAUSAL[mask] = bool((mask == later).all())
    known: bool = _CAUSAL[mask]
    return known
