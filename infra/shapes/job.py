"""The multimodal job that packs the shapes."""

from megapack.jobs.multimodal import GroupKind, MultimodalJob, SampleGroup, SampleSource
from megapack.multimodal.config import (
    DropoutConfig,
    FrameRule,
    FrameSampling,
    ImageTransform,
    VisionConfig,
)
from megapack.packing.row_limits import RowLimits

PATCH = 8
"""Pixels of a side of a VIT patch and of a VAE latent."""

VISION = VisionConfig(vit_patch_size=PATCH, vit_max_side=12, vae_downsample=PATCH, vae_max_side=12)
_TRANSFORM = ImageTransform(stride=PATCH, max_size=48, min_size=16)


def shapes_job(folder: str, *, limits: RowLimits | None = None, seed: int = 0) -> MultimodalJob:
    """All three groups of a folder that `build_shapes` wrote.

    Args:
        folder: local, or where it was copied to in a store.
        limits: budgets of a row; 1024 tokens when None.
        seed: of all that is drawn.
    """
    groups = tuple(
        SampleGroup(
            name=kind.value,
            kind=kind,
            sources=(SampleSource(uri=f"{folder}/{files}"),),
            weight=weight,
            vae=None if kind is GroupKind.UNDERSTANDING else _TRANSFORM,
            vit=None if kind is GroupKind.TEXT_TO_IMAGE else _TRANSFORM,
            frames=FrameSampling(min_frames=2, max_frames=3, rule=FrameRule.MIDDLE)
            if kind is GroupKind.UNDERSTANDING
            else None,
        )
        for kind, weight, files in (
            (GroupKind.TEXT_TO_IMAGE, 3.0, "text_to_image"),
            (GroupKind.UNDERSTANDING, 3.0, "understanding/talks.jsonl"),
            (GroupKind.EDITING, 1.0, "editing"),
        )
    )
    return MultimodalJob(
        groups=groups,
        tokenizer=f"{folder}/tokenizer",
        limits=limits
        or RowLimits(
            max_tokens=1024,
            expected_tokens=896,
            max_sample_tokens=640,
            prefer_buffer_before=512,
            max_buffered=16,
        ),
        vision=VISION,
        dropout=DropoutConfig(text=0.1, vit=0.1, vae=0.1),
        seed=seed,
    )
