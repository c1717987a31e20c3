"""Laid samples made by hand: all kinds of items, tiny images, everything drawn from a seed."""

import io

import numpy as np
from PIL import Image

from megapack.records.multimodal_sample import (
    LaidSample,
    PlanItem,
    Sample,
    SampleRef,
    SampleSize,
    SpanKind,
)


def png(generator, height, width):
    """Bytes of a PNG of random pixels."""
    pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def raw_sample(seed, *, reading=0, group="g"):
    """A sample with text, a clean and a noised VAE image, a VIT image, and a joined frame."""
    generator = np.random.default_rng(seed)
    items = (
        PlanItem(
            kind=SpanKind.TEXT,
            text=generator.integers(4, 50, int(generator.integers(0, 6))).astype(np.int32),
            droppable=True,
        ),
        PlanItem(kind=SpanKind.VAE, image=0, height=16, width=32, droppable=True),
        PlanItem(kind=SpanKind.VIT, image=0, height=14, width=28, end_label=2),
        PlanItem(kind=SpanKind.TEXT, text=generator.integers(4, 50, 3).astype(np.int32), loss=True),
        PlanItem(kind=SpanKind.VAE, image=1, height=32, width=16, loss=True, position_step=0),
        PlanItem(kind=SpanKind.VAE, image=2, height=32, width=16, loss=True, joins=True),
    )
    return Sample(
        ref=SampleRef(group=group, source="main", file="a/b.parquet", row=seed, reading=reading),
        items=items,
        encoded=tuple(png(generator, 8, 9 + at) for at in range(3)),
    )


def laid_by_hand(seed):
    """A laid sample whose numbers mean nothing, for what only carries them."""
    sample = raw_sample(seed)
    generator = np.random.default_rng(seed + 1)
    count = len(sample.items)
    lengths = generator.integers(0, 9, count).astype(np.int32)
    timesteps = generator.standard_normal(count).astype(np.float32)
    timesteps[:2] = -np.inf
    return LaidSample(
        sample=sample,
        kept=generator.random(count) < 0.5,
        timesteps=timesteps,
        starts=(np.cumsum(lengths) - lengths).astype(np.int32),
        lengths=lengths,
        positions=generator.integers(0, 99, count).astype(np.int32),
        size=SampleSize(tokens=int(lengths.sum()), vit_tokens=2, vae_tokens=7, images=4),
    )


def same_laid(one, other):
    """Whether two laid samples are the same in everything but pixels, dtypes included."""
    arrays = ("kept", "timesteps", "starts", "lengths", "positions")
    return (
        one.size == other.size
        and one.sample.ref == other.sample.ref
        and one.sample.encoded == other.sample.encoded
        and all(_same(getattr(one, name), getattr(other, name)) for name in arrays)
        and len(one.sample.items) == len(other.sample.items)
        and all(map(_same_item, one.sample.items, other.sample.items))
    )


def _same(one, other):
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


def _same_item(one, other):
    fields = [name for name in PlanItem.__slots__ if name != "text"]
    texts = (one.text is None and other.text is None) or _same(one.text, other.text)
    return texts and all(getattr(one, name) == getattr(other, name) for name in fields)
