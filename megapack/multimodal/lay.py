"""What of a sample is written, where, and how long it is.

Text is written as begin, ids, end; an image as start of image, its grid, end of image. Position ids
run on over text; all tokens of an image share one, and the next item goes on one later, after a
predicted VAE image at the same one, or as `position_step` says. A dropped image moves the position
on as if it were there; dropped text does not.

Letters: I items of a sample.
"""

from collections.abc import Sequence

import numpy as np

from megapack.errors import ContractError
from megapack.multimodal.config import DropoutConfig, WritingRules
from megapack.multimodal.grid import grid_of
from megapack.records.multimodal_row import Int64
from megapack.records.multimodal_sample import (
    Bool,
    Float32,
    Int32,
    LaidSample,
    PlanItem,
    Sample,
    SampleSize,
    SpanKind,
)

DELIMITERS = 2


def full_size(items: Sequence[PlanItem], rules: WritingRules) -> SampleSize:
    """What a sample takes of a row when nothing of it is dropped."""
    return _size(items, _grids(items, rules), np.ones(len(items), dtype=np.bool_))


def draw_writing(
    items: Sequence[PlanItem], dropout: DropoutConfig, generator: np.random.Generator
) -> tuple[Bool, Float32]:
    """Draw which conditions are dropped, and the noise levels.

    One uniform and one normal number is drawn for each split, needed or not, so that what one split
    gets does not depend on what the others are.

    Args:
        items: of the sample.
        dropout: share of conditions of each kind that are left out.
        generator: of the sample, moved on by 2 draws for each split.

    Returns:
        kept: bool [I], False for what is dropped; a split is kept or dropped as a whole.
        timesteps: float32 [I], noise level before the sigmoid, one for all frames of a split; -inf
            for text and clean images.

    Raises:
        ContractError: a later frame that differs from its split.
    """
    splits = split_numbers(items)
    count = int(splits[-1]) + 1 if len(items) else 0
    uniform, normal = generator.random(count), generator.standard_normal(count)
    shares = {
        SpanKind.TEXT: dropout.text,
        SpanKind.VIT: dropout.vit,
        SpanKind.VAE: dropout.vae,
    }
    limits = np.array([shares[item.kind] if item.droppable else 0.0 for item in items])
    noised = np.array([item.kind is SpanKind.VAE and item.loss for item in items], dtype=np.bool_)
    timesteps = np.where(noised, normal[splits], -np.inf).astype(np.float32)
    return uniform[splits] >= limits, timesteps


def lay_out(sample: Sample, *, kept: Bool, timesteps: Float32, rules: WritingRules) -> LaidSample:
    """Lay a sample out as it is written.

    Args:
        sample: with or without pixels.
        kept: bool [I], see `draw_writing`.
        timesteps: float32 [I], likewise.
        rules: how samples are written.

    Returns:
        The sample with the start, length and position of each item, and its size.

    Raises:
        ContractError: shapes that do not match, a split that is kept in part, a predicted image
            without a noise level, or a clean one with one.
    """
    items = sample.items
    _check(items, kept, timesteps)
    grids = _grids(items, rules)
    full = _full_lengths(items, grids)
    lengths = np.where(kept, full, 0)
    steps = np.array(
        [_step(item, int(length)) for item, length in zip(items, lengths, strict=True)],
        dtype=np.int64,
    )
    return LaidSample(
        sample=sample,
        kept=kept,
        timesteps=timesteps,
        starts=_before(lengths),
        lengths=lengths.astype(np.int32),
        positions=_before(steps),
        size=_size(items, grids, kept),
    )


def split_numbers(items: Sequence[PlanItem]) -> Int32:
    """Number of the split each item belongs to, int32 [I], from 0.

    Raises:
        ContractError: a later frame without a split to join, or one of another kind, loss or chance
            to be dropped.
    """
    for number, item in enumerate(items):
        if item.joins and (not number or _traits(items[number - 1]) != _traits(item)):
            raise ContractError(
                f"items: expected a later frame to follow an image of its kind, with the same loss "
                f"and droppable, found item {number} ({item.kind}) after "
                f"{items[number - 1].kind if number else 'nothing'}."
            )
    heads = np.array([not item.joins for item in items], dtype=np.int32)
    return (np.cumsum(heads) - 1).astype(np.int32)


def _traits(item: PlanItem) -> tuple[SpanKind, bool, bool]:
    return item.kind, item.loss, item.droppable


def _grids(items: Sequence[PlanItem], rules: WritingRules) -> Int32:
    """Patches or latents of each item, int32 [I]; 0 for text."""
    return np.array(
        [0 if item.kind is SpanKind.TEXT else grid_of(item, rules.vision).count for item in items],
        dtype=np.int32,
    )


def _full_lengths(items: Sequence[PlanItem], grids: Int32) -> Int32:
    """Positions of each item when nothing is dropped, int32 [I]."""
    texts = [0 if item.text is None else item.text.size for item in items]
    return grids + np.array(texts, dtype=np.int32) + np.int32(DELIMITERS)


def _size(items: Sequence[PlanItem], grids: Int32, kept: Bool) -> SampleSize:
    vit = kept & np.array([item.kind is SpanKind.VIT for item in items], dtype=np.bool_)
    vae = kept & np.array([item.kind is SpanKind.VAE for item in items], dtype=np.bool_)
    return SampleSize(
        tokens=int(_full_lengths(items, grids)[kept].sum()),
        vit_tokens=int(grids[vit].sum()),
        vae_tokens=int(grids[vae].sum()),
        images=int(np.count_nonzero(vit | vae)),
    )


def _step(item: PlanItem, length: int) -> int:
    """How far an item with `length` written positions moves the position on."""
    if item.kind is SpanKind.TEXT:
        return length
    if item.position_step is not None:
        return item.position_step
    return 0 if item.kind is SpanKind.VAE and item.loss else 1


def _before(amounts: Int32 | Int64) -> Int32:
    """Sum of all earlier amounts, int32 [I]."""
    before: Int32 = (np.cumsum(amounts) - amounts).astype(np.int32)
    return before


def _check(items: Sequence[PlanItem], kept: Bool, timesteps: Float32) -> None:
    if kept.shape != (len(items),) or timesteps.shape != (len(items),):
        raise ContractError(
            f"lay_out: expected kept and timesteps for {len(items)} items, found {kept.shape} and "
            f"{timesteps.shape}."
        )
    splits = split_numbers(items)
    for number, item in enumerate(items):
        if item.joins and (
            kept[number] != kept[number - 1] or timesteps[number] != timesteps[number - 1]
        ):
            raise ContractError(
                f"lay_out: expected split {splits[number]} kept or dropped as a whole, at one "
                f"noise level, found item {number} unlike the one before."
            )
        noised = item.kind is SpanKind.VAE and item.loss
        if noised != bool(np.isfinite(timesteps[number])):
            raise ContractError(
                f"lay_out: expected a noise level for predicted images and -inf for the rest, "
                f"found {timesteps[number]} at item {number} ({item.kind}, loss {item.loss})."
            )
