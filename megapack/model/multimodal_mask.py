"""Who sees whom in a packed row: attention under a mask for each sample, or under one rule for all.

Two forms, the same outputs and gradients. Nested: each sample is attended to alone, under its mask;
nothing crosses its border, by construction. Columns: one call over the padded row, under a rule of
three numbers a position, which is what flex attention computes block by block without ever making
the mask. Flex attention has no backward on a CPU (torch 2.15); there the same rule makes a mask of
T * T booleans for ordinary attention.

Letters: L positions of the row, T of the padded one, n of a sample, heads, s features of a head.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from megapack.batch.multimodal_batch import MultimodalBatch
from megapack.errors import ContractError

MaskRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From batch, head, query and key numbers to a bool: True where the query sees the key."""


class ColumnKernel(StrEnum):
    """What computes attention under mask columns: flex attention, or a mask written out."""

    FLEX = "flex"
    DENSE = "dense"


class Attention(Protocol):
    """Attention over the positions of one row."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[L, heads, s] each, and so is what comes back."""
        ...


def attention_of(batch: MultimodalBatch, kernel: ColumnKernel | None = None) -> Attention:
    """Attention under the mask that a batch carries; make it once, use it in every layer.

    Args:
        batch: with masks or with mask columns.
        kernel: for mask columns; None takes flex attention where it has a backward, on CUDA.

    Raises:
        ContractError: the batch has neither, or its masks are not those of its samples.
    """
    if batch.mask_columns is not None:
        if kernel is None:
            on_cuda = batch.mask_columns.device.type == "cuda"
            kernel = ColumnKernel.FLEX if on_cuda else ColumnKernel.DENSE
        return _under_columns(batch.mask_columns, batch.length, kernel)
    found = tuple(tuple(mask.shape) for mask in batch.masks)
    if found != tuple((length, length) for length in batch.sample_lengths):
        raise ContractError(
            f"MultimodalBatch.masks: expected mask columns or one mask for each sample of lengths "
            f"{batch.sample_lengths}, found masks of {found}."
        )
    return _under_masks(batch.masks, batch.sample_lengths)


def mask_rule(columns: Tensor) -> MaskRule:
    """The rule of mask columns, for `flex_attention`.

    Args:
        columns: int32 [3, T], see `MultimodalBatch.mask_columns`.
    """
    sample, full, noise = columns.unbind(0)

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        together = (full[query] == full[key]) & (full[query] >= 0)
        hidden = (noise[key] >= 0) & (noise[query] != noise[key])
        return (sample[query] == sample[key]) & ((query >= key) | together) & ~hidden

    return sees


def dense_mask(columns: Tensor) -> Tensor:
    """The rule written out: bool [T, T], True where the query of a row sees the key of a column."""
    places = torch.arange(columns.shape[1], device=columns.device)
    unused = places[:0]
    return mask_rule(columns)(unused, unused, places[:, None], places[None])


def _under_masks(masks: tuple[Tensor, ...], lengths: tuple[int, ...]) -> Attention:
    sizes = list(lengths)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        samples = zip(
            torch.split(q, sizes), torch.split(k, sizes), torch.split(v, sizes), masks, strict=True
        )
        return torch.cat([_attend(*sample) for sample in samples])

    return attend


def _under_columns(columns: Tensor, length: int, kernel: ColumnKernel) -> Attention:
    padded = columns.shape[1]
    if kernel is ColumnKernel.DENSE:
        mask = dense_mask(columns)[:length, :length]
        return lambda q, k, v: _attend(q, k, v, mask)
    device = columns.device
    rule = mask_rule(columns)
    blocks = create_block_mask(rule, None, None, padded, padded, device=str(device))
    run = _compiled() if device.type == "cuda" else _PLAIN

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads_first = (
            functional.pad(one, (0, 0, 0, 0, 0, padded - length)).transpose(0, 1)[None]
            for one in (q, k, v)
        )
        out: Tensor = run(*heads_first, block_mask=blocks)
        return out[0].transpose(0, 1)[:length]

    return attend


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Ordinary attention of [n, heads, s] under bool [n, n]."""
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask
    )
    return out[0].transpose(0, 1)


_PLAIN: Callable[..., Any] = flex_attention
_COMPILED: list[Callable[..., Any]] = []


def _compiled() -> Callable[..., Any]:
    """Flex attention as one kernel, compiled at the first call and for each padded length."""
    if not _COMPILED:
        _COMPILED.append(torch.compile(flex_attention, dynamic=False))
    return _COMPILED[0]
