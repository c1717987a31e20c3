"""What must hold for the samples of one stored row, and for the row that they assemble to."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from megapack.errors import MegapackError
from megapack.multimodal.assemble import assemble
from megapack.multimodal.attention import mask_columns, mask_from_columns, nested_masks
from megapack.multimodal.config import WritingRules
from megapack.multimodal.lay import full_size, lay_out
from megapack.multimodal.pixels import with_pixels
from megapack.packing.row_limits import RowLimits
from megapack.records.multimodal_row import MultimodalRow
from megapack.records.multimodal_sample import Int32, LaidSample, PlanItem, SpanKind
from megapack.store.multimodal_table import StoredRow

_MOST_MASKED = 2048


def check_samples(
    row: StoredRow, rules: WritingRules, limits: RowLimits, vocab_size: int
) -> Iterator[str]:
    """Faults of a row's samples, without pixels: one line each."""
    if not row.laid:
        yield "expected samples, found none"
    for number, laid in enumerate(row.laid):
        for fault in _sample_faults(laid, rules, limits, vocab_size):
            yield f"sample {number} ({laid.sample.ref.group}, {laid.sample.ref.file}): {fault}"


def check_assembled(row: StoredRow, rules: WritingRules) -> Iterator[str]:
    """Faults of the row that the samples assemble to: one line each."""
    try:
        laid = [replace(one, sample=with_pixels(one.sample)) for one in row.laid]
        made = assemble(laid, rules)
    except MegapackError as error:
        yield f"expected a row that assembles, found: {error}"
        return
    yield from _row_faults(made)
    if made.length <= _MOST_MASKED:
        yield from _mask_faults(made)


def _sample_faults(
    laid: LaidSample, rules: WritingRules, limits: RowLimits, vocab_size: int
) -> Iterator[str]:
    sample = laid.sample
    for item in sample.items:
        yield from _item_faults(item, len(sample.encoded), vocab_size)
    unused = set(range(len(sample.encoded))) - {item.image for item in sample.items}
    if unused:
        yield f"expected each image to be shown by an item, found {sorted(unused)} that are not"
    forced = [item.kind.value for item, kept in _pairs(laid) if not kept and not item.droppable]
    if forced:
        yield f"expected only conditions to be dropped, found {forced}"
    noised = np.array([item.kind is SpanKind.VAE and item.loss for item in sample.items], np.bool_)
    if not np.array_equal(np.isfinite(laid.timesteps), noised) or np.isnan(laid.timesteps).any():
        yield "expected noise levels at predicted images and -inf elsewhere, found others"
    try:
        full = full_size(sample.items, rules).tokens
        again = lay_out(sample, kept=laid.kept, timesteps=laid.timesteps, rules=rules)
    except MegapackError as error:
        yield f"expected items that can be laid out, found: {error}"
        return
    if full > limits.max_sample_tokens:
        yield f"expected at most {limits.max_sample_tokens} tokens before dropout, found {full}"
    for name in ("starts", "lengths", "positions"):
        if not np.array_equal(getattr(again, name), getattr(laid, name)):
            yield f"expected {name} that follow from its items, found others"
    if again.size != laid.size:
        yield f"expected size {again.size}, found {laid.size}"


def _item_faults(item: PlanItem, images: int, vocab_size: int) -> Iterator[str]:
    ids = np.array([] if item.text is None else item.text, np.int64)
    if item.end_label is not None:
        ids = np.append(ids, item.end_label)
    outside = int(((ids < 0) | (ids >= vocab_size)).sum())
    if outside:
        yield f"expected ids in [0, {vocab_size}), found {outside} outside"
    if item.image >= images:
        yield f"expected an image of {images}, found number {item.image}"


def _pairs(laid: LaidSample) -> Iterator[tuple[PlanItem, bool]]:
    yield from zip(laid.sample.items, laid.kept.tolist(), strict=True)


def _row_faults(row: MultimodalRow) -> Iterator[str]:
    for name in ("sample_lengths", "split_lengths"):
        lengths: Int32 = getattr(row, name)
        if int(lengths.sum()) != row.length or (lengths.size and int(lengths.min()) < 1):
            yield f"expected {name} of at least 1 that add up to {row.length}, found others"
    for name in ("text_index", "ce_index", "vit_index", "vae_index", "mse_index"):
        index: Int32 = getattr(row, name)
        inside = index.size == 0 or (index[0] >= 0 and index[-1] < row.length)
        if not inside or (np.diff(index) <= 0).any():
            yield f"expected {name} ascending in [0, {row.length}), found others"
    written = np.concatenate([row.text_index, row.vit_index, row.vae_index])
    if not np.array_equal(np.sort(written), np.arange(row.length)):
        yield "expected each position to be text, a patch or a latent, found others"
    if not np.isin(row.mse_index, row.vae_index).all():
        yield "expected latents at the predicted positions, found others"
    sizes = (
        ("vit_tokens", row.vit_tokens.shape[0], row.vit_index.size),
        ("vit_lengths", int(row.vit_lengths.sum()), row.vit_index.size),
        ("vae_shapes", int(row.vae_shapes.prod(axis=1).sum()), row.vae_index.size),
        ("timesteps", row.timesteps.size, row.vae_index.size),
        ("label_ids", row.label_ids.size, row.ce_index.size),
        ("ce_weights", row.ce_weights.size, row.ce_index.size),
        ("attention_modes", len(row.attention_modes), row.split_lengths.size),
    )
    for name, found, expected in sizes:
        if found != expected:
            yield f"expected {expected} values for {name}, found {found}"


def _mask_faults(row: MultimodalRow) -> Iterator[str]:
    whole = mask_from_columns(mask_columns(row, row.length))
    start = 0
    for number, mask in enumerate(nested_masks(row)):
        end = start + mask.shape[0]
        if not np.array_equal(whole[start:end, start:end], mask):
            yield f"expected the mask of sample {number} to equal that of the columns, found others"
        whole[start:end, start:end] = False
        start = end
    if whole.any():
        yield "expected samples that do not see each other, found some that do"
