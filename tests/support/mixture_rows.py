"""Small rows for the multimodal model, and samples with one thing changed."""

from dataclasses import replace

import numpy as np
import torch

from megapack.batch.multimodal_batch import MultimodalBatch
from megapack.batch.multimodal_tensors import to_batch
from megapack.model.multimodal import MixtureModel
from megapack.model.multimodal_config import MixtureConfig
from megapack.model.multimodal_mask import ColumnKernel
from megapack.multimodal.assemble import assemble
from megapack.multimodal.config import MaskForm, SpecialTokens, VisionConfig, WritingRules
from megapack.multimodal.lay import lay_out
from megapack.records.multimodal_sample import LaidSample, PlanItem, Sample, SampleRef, SpanKind

PATCH = 4
VOCABULARY = 40
RULES = WritingRules(
    special=SpecialTokens(bos=1, eos=2, start_of_image=3, end_of_image=4),
    vision=VisionConfig(vit_patch_size=PATCH, vit_max_side=4, vae_downsample=PATCH, vae_max_side=4),
)
CONFIG = MixtureConfig(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    ffn_size=24,
    vit_hidden_size=12,
    vit_layers=1,
    vit_patch_size=PATCH,
    vit_max_side=4,
    vae_downsample=PATCH,
    vae_max_side=4,
    latent_channels=6,
    timestep_shift=3.0,
)


def text(*ids: int, loss: bool = False) -> PlanItem:
    return PlanItem(kind=SpanKind.TEXT, text=np.array(ids, dtype=np.int32), loss=loss)


def image(kind: SpanKind, high: int, wide: int, *, loss: bool = False, joins: bool = False):
    return PlanItem(
        kind=kind, image=0, height=PATCH * high, width=PATCH * wide, loss=loss, joins=joins
    )


def laid(row: int, *items: PlanItem) -> LaidSample:
    """A sample with pixels and noise levels of its own."""
    random = np.random.default_rng(row)
    levels = random.standard_normal(len(items))
    for number, item in enumerate(items):
        if item.joins:
            levels[number] = levels[number - 1]
    noised = [item.kind is SpanKind.VAE and item.loss for item in items]
    sample = Sample(
        ref=SampleRef(group="g", source="main", file="a", row=row),
        items=items,
        pixels=tuple(
            random.integers(0, 256, (item.height, item.width, 3), dtype=np.uint8)
            for item in items
            if item.kind is not SpanKind.TEXT
        ),
    )
    return lay_out(
        sample,
        kept=np.ones(len(items), dtype=np.bool_),
        timesteps=np.where(noised, levels, -np.inf).astype(np.float32),
        rules=RULES,
    )


def samples() -> tuple[LaidSample, ...]:
    """An editing chain, a talk about an image, an image of a caption, a predicted video."""
    vit, vae = SpanKind.VIT, SpanKind.VAE
    return (
        laid(
            1,
            image(vae, 2, 2),
            image(vit, 2, 3),
            text(10, 11),
            image(vae, 2, 2, loss=True),
            image(vae, 2, 2),
            text(12),
            image(vae, 1, 2, loss=True),
        ),
        laid(2, image(vit, 3, 2), text(20, 21, 22), text(23, 24, loss=True), text(5, loss=True)),
        laid(3, text(30, 31), image(vae, 2, 3, loss=True)),
        laid(
            4,
            text(32),
            image(vae, 1, 2, loss=True),
            image(vae, 1, 2, loss=True, joins=True),
            text(33, loss=True),
        ),
    )


def with_text(one: LaidSample, item: int, ids: list[int]) -> LaidSample:
    """The sample with other ids of the same number."""
    items = list(one.sample.items)
    items[item] = replace(items[item], text=np.array(ids, dtype=np.int32))
    return replace(one, sample=replace(one.sample, items=tuple(items)))


def with_pixels(one: LaidSample, picture: int) -> LaidSample:
    """The sample with one picture turned to its negative."""
    pixels = list(one.sample.pixels)
    pixels[picture] = 255 - pixels[picture]
    return replace(one, sample=replace(one.sample, pixels=tuple(pixels)))


def with_level(one: LaidSample, item: int, level: float) -> LaidSample:
    """The sample with another noise level of one image."""
    levels = one.timesteps.copy()
    levels[item] = level
    return replace(one, timesteps=levels)


def batch_of(
    chosen: tuple[LaidSample, ...], mask: MaskForm = MaskForm.NESTED, *, padding: int = 0
) -> MultimodalBatch:
    row = assemble(chosen, RULES)
    return to_batch(row, mask=mask, padded_length=row.length + padding)


def model_of(*, kernel: ColumnKernel | None = None) -> MixtureModel:
    """A float64 model with nothing at zero, so that everything has a gradient."""
    model = MixtureModel(CONFIG, kernel=kernel).double()
    model.initialize(seed=0)
    with torch.no_grad():
        model.velocity_head.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    return model
