"""Small random multimodal samples, with pixels."""

import numpy as np
from hypothesis import strategies as st

from megapack.multimodal.config import (
    LossWeighting,
    PatchPositions,
    SpecialTokens,
    VisionConfig,
    WritingRules,
)
from megapack.records.multimodal_sample import PlanItem, Sample, SampleRef, SpanKind

SPECIAL = SpecialTokens(bos=1000, eos=1001, start_of_image=1002, end_of_image=1003)
VISION = VisionConfig(
    vit_patch_size=2,
    vit_max_side=5,
    vae_downsample=3,
    vae_max_side=4,
    vit_mean=(0.1, 0.2, 0.3),
    vit_std=(0.9, 0.8, 0.7),
)
RULES = WritingRules(special=SPECIAL, vision=VISION)


def ref_of(row, group="g"):
    return SampleRef(group=group, source="main", file="a.parquet", row=row)


def text(*ids, **changes):
    return PlanItem(kind=SpanKind.TEXT, text=np.array(ids, dtype=np.int32), **changes)


def vit(high=1, wide=1, **changes):
    return PlanItem(kind=SpanKind.VIT, image=0, height=2 * high, width=2 * wide, **changes)


def vae(high=1, wide=1, **changes):
    return PlanItem(kind=SpanKind.VAE, image=0, height=3 * high, width=3 * wide, **changes)


def sample_of(*items, row=0):
    """A sample with random pixels, the same for the same row."""
    random = np.random.default_rng(row)
    pixels = tuple(
        random.integers(0, 256, (item.height, item.width, 3), dtype=np.uint8)
        for item in items
        if item.kind is not SpanKind.TEXT
    )
    return Sample(ref=ref_of(row), items=items, pixels=pixels)


@st.composite
def writing_rules(draw):
    """Rules of every kind of position ids and loss weights."""
    return WritingRules(
        special=SPECIAL,
        vision=VISION.model_copy(update={"positions": draw(st.sampled_from(PatchPositions))}),
        loss_weighting=draw(st.sampled_from(LossWeighting)),
    )


@st.composite
def splits(draw):
    """One split: a text, an image, or a video of up to three frames."""
    kind = draw(st.sampled_from(SpanKind))
    shared = {
        "loss": kind is not SpanKind.VIT and draw(st.booleans()),
        "droppable": draw(st.booleans()),
    }
    ends = st.none() | st.integers(0, 999)
    if kind is SpanKind.TEXT:
        ids = draw(st.lists(st.integers(0, 999), max_size=4))
        return [text(*ids, end_label=draw(ends), **shared)]
    make, most = (vit, 5) if kind is SpanKind.VIT else (vae, 4)
    sides = st.integers(1, most)
    return [
        make(
            draw(sides),
            draw(sides),
            joins=number > 0,
            position_step=draw(st.none() | st.integers(0, 9)),
            end_label=draw(ends),
            **shared,
        )
        for number in range(draw(st.integers(1, 3)))
    ]


@st.composite
def samples(draw, *, most_splits=4):
    """A sample of up to so many splits."""
    parts = draw(st.lists(splits(), min_size=1, max_size=most_splits))
    return sample_of(*[item for part in parts for item in part], row=draw(st.integers(0, 99)))
