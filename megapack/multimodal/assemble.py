"""Write laid samples into a row: every index array comes from the columns of the written items.

Nothing is looped over by token: a row of 32 thousand positions costs about as much as copying its
pixels. Letters as in `records.multimodal_row`.
"""

from collections.abc import Sequence

import numpy as np

from megapack.errors import ContractError
from megapack.multimodal.config import LossWeighting, WritingRules
from megapack.multimodal.grid import grid_of, grid_positions
from megapack.multimodal.images import padded_images, vit_patches
from megapack.multimodal.spans import Spans, joined_ranges
from megapack.records.multimodal_row import MultimodalRow, PlacedSample
from megapack.records.multimodal_sample import (
    AttentionMode,
    Bool,
    Float32,
    Int32,
    LaidSample,
    SpanKind,
    UInt8,
)


def assemble(laid: Sequence[LaidSample], rules: WritingRules) -> MultimodalRow:
    """Write samples into one row, in order.

    Args:
        laid: at least one, with pixels, each with something that is written.
        rules: the same that the samples were laid out by.

    Returns:
        The row.

    Raises:
        ContractError: no samples, pixels missing, or lengths that are not what is written.
    """
    if not laid:
        raise ContractError("assemble: expected at least one sample, found none.")
    spans = Spans.of(laid)
    length = int(spans.lengths.sum())
    splits = np.cumsum(spans.heads) - 1
    tokens, is_text = _tokens(spans, rules, length)
    ce_index, label_ids, ce_weights = _labels(spans, tokens, rules.loss_weighting)
    latents = spans.lengths[spans.vae] - 2
    return MultimodalRow(
        length=length,
        samples=_placed(laid),
        sample_lengths=np.array([one.size.tokens for one in laid], dtype=np.int32),
        split_lengths=np.bincount(splits, weights=spans.lengths).astype(np.int32),
        split_samples=spans.samples[spans.heads],
        attention_modes=_modes(spans),
        position_ids=_position_ids(spans),
        text_ids=tokens[is_text],
        text_index=np.flatnonzero(is_text).astype(np.int32),
        label_ids=label_ids,
        ce_index=ce_index,
        ce_weights=ce_weights,
        vit_tokens=vit_patches(
            _pictures(spans, spans.vit),
            rules.vision.vit_patch_size,
            mean=rules.vision.vit_mean,
            std=rules.vision.vit_std,
        ),
        vit_index=spans.grid_index(spans.vit),
        vit_position_ids=_grid_positions(spans, spans.vit, rules),
        vit_lengths=spans.lengths[spans.vit] - 2,
        vae_images=padded_images(
            _pictures(spans, spans.vae), mean=rules.vision.vae_mean, std=rules.vision.vae_std
        ),
        vae_shapes=_shapes(spans, rules),
        vae_index=spans.grid_index(spans.vae),
        vae_position_ids=_grid_positions(spans, spans.vae, rules),
        timesteps=np.repeat(spans.timesteps[spans.vae], latents),
        mse_index=spans.grid_index(spans.vae & spans.loss),
    )


def _placed(laid: Sequence[LaidSample]) -> tuple[PlacedSample, ...]:
    placed: list[PlacedSample] = []
    start = 0
    for one in laid:
        if one.size.tokens != int(one.lengths.sum()):
            raise ContractError(
                f"assemble: expected {one.size.tokens} positions, as the sample's size says, found "
                f"{one.lengths.sum()} in group {one.sample.ref.group}, row {one.sample.ref.row}."
            )
        dropped = (
            item.kind.value
            for item, kept in zip(one.sample.items, one.kept, strict=True)
            if not kept
        )
        placed.append(
            PlacedSample(
                ref=one.sample.ref, start=start, length=one.size.tokens, dropped=tuple(dropped)
            )
        )
        start += one.size.tokens
    return tuple(placed)


def _tokens(spans: Spans, rules: WritingRules, length: int) -> tuple[Int32, Bool]:
    """Ids at each position, int32 [L], and where they count: bool [L], False inside images."""
    tokens = np.zeros(length, dtype=np.int32)
    special = rules.special
    lasts = spans.starts + spans.lengths - 1
    tokens[spans.starts] = np.where(spans.text, special.bos, special.start_of_image)
    tokens[lasts] = np.where(spans.text, special.eos, special.end_of_image)
    texts = [item.text for item in spans.items if item.text is not None]
    if texts:
        tokens[spans.grid_index(spans.text)] = np.concatenate(texts)
    is_text = np.ones(length, dtype=np.bool_)
    is_text[spans.grid_index(~spans.text)] = False
    return tokens, is_text


def _labels(spans: Spans, tokens: Int32, weighting: LossWeighting) -> tuple[Int32, Int32, Float32]:
    """Positions with a cross-entropy, ascending, their labels and weights.

    Predicted text is predicted from its begin token on: the label is the next token, the end token
    the last. An end label stands at an item's last token.
    """
    predicted = spans.text & spans.loss
    counts = spans.lengths[predicted] - 1
    within = joined_ranges(spans.starts[predicted], counts)
    ended = np.array([item.end_label is not None for item in spans.items], dtype=np.bool_)
    lasts = (spans.starts + spans.lengths - 1)[ended]
    end_labels = np.array(
        [item.end_label for item in spans.items if item.end_label is not None], dtype=np.int32
    )
    weights = np.repeat(_weights(counts, weighting), counts)
    places = np.concatenate((within, lasts))
    order = np.argsort(places, kind="stable")
    return (
        places[order],
        np.concatenate((tokens[within + 1], end_labels))[order],
        np.concatenate((weights, np.ones(lasts.size, dtype=np.float32)))[order],
    )


def _weights(counts: Int32, weighting: LossWeighting) -> Float32:
    """Weight of each predicted token of texts with so many."""
    power = {LossWeighting.TOKEN: 0.0, LossWeighting.SAMPLE: 1.0, LossWeighting.SQUARE: 0.5}
    weights: Float32 = (1.0 / counts ** power[weighting]).astype(np.float32)
    return weights


def _position_ids(spans: Spans) -> Int32:
    """Running on in text, the same for all tokens of an image."""
    first = np.repeat(spans.positions, spans.lengths)
    run = joined_ranges(np.zeros_like(spans.starts), spans.lengths)
    return first + run * np.repeat(spans.text, spans.lengths)


def _modes(spans: Spans) -> tuple[AttentionMode, ...]:
    modes: list[AttentionMode] = []
    for item in spans.items:
        if item.joins:
            continue
        if item.kind is SpanKind.TEXT:
            modes.append(AttentionMode.CAUSAL)
        else:
            modes.append(AttentionMode.NOISE if item.loss else AttentionMode.FULL)
    return tuple(modes)


def _pictures(spans: Spans, chosen: Bool) -> list[UInt8]:
    return [
        picture
        for picture, wanted in zip(spans.pixels, chosen, strict=True)
        if wanted and picture is not None
    ]


def _grid_positions(spans: Spans, chosen: Bool, rules: WritingRules) -> Int32:
    ids = [
        grid_positions(item, rules.vision)
        for item, wanted in zip(spans.items, chosen, strict=True)
        if wanted
    ]
    return np.concatenate(ids) if ids else np.empty(0, dtype=np.int32)


def _shapes(spans: Spans, rules: WritingRules) -> Int32:
    grids = [grid_of(item, rules.vision) for item in spans.items if item.kind is SpanKind.VAE]
    return np.array([(grid.high, grid.wide) for grid in grids], dtype=np.int32).reshape(-1, 2)
