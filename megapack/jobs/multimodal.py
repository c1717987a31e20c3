"""The multimodal jobs: what a stream of packed rows reads, and how it is written to a store."""

from collections import Counter
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from megapack.jobs.base import Job
from megapack.multimodal.config import (
    DropoutConfig,
    FrameSampling,
    ImageTransform,
    LossWeighting,
    VisionConfig,
)
from megapack.packing.row_limits import RowLimits

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class GroupKind(StrEnum):
    """What the records of a group are.

    TEXT_TO_IMAGE: Parquet with an image's bytes and captions; a caption is drawn and the image is
    predicted. UNDERSTANDING: JSONL of conversations about image files or frames; answers are
    predicted. EDITING: Parquet with a list of images and the instructions between them; a stretch
    is drawn and its later images are predicted.
    """

    TEXT_TO_IMAGE = "text_to_image"
    UNDERSTANDING = "understanding"
    EDITING = "editing"


class SampleSource(Job):
    """Files of a group.

    Attributes:
        uri: file, folder, glob or prefix of Parquet or JSONL files, local or `s3://`.
        name: how samples are known; the folder may move without changing what is drawn.
        images: folder or prefix of the image files that JSONL records name; the folder of the JSONL
            file when empty.
        metadata: JSON file `{path: {"num_row_groups": n}}` about the Parquet files, or "". An entry
            that matches no file is an error.
        max_samples: records taken from the front, or None for all.
    """

    uri: str = Field(min_length=1)
    name: str = Field(default="main", pattern=NAME)
    images: str = ""
    metadata: str = ""
    max_samples: int | None = Field(default=None, ge=1)


class SampleGroup(Job):
    """One group of the mixture.

    Attributes:
        name: of the group.
        kind: what its records are.
        sources: where they stand.
        weight: its part in the draw of samples, relative to the sum over groups that still have
            some; 0 only for a mandatory group.
        mandatory: each row begins with a sample of it, as long as it has one that fits.
        readings: how often all of it is read in an epoch; None repeats without end.
        vae: how images are resized for the VAE.
        vit: how images are resized for the vision transformer.
        frames: how frames of a video are chosen.
        image_field: column of the image (bytes, or a record with `bytes`).
        text_field: column of the captions: text, list, or a JSON object or list as text.
    """

    name: str = Field(pattern=NAME)
    kind: GroupKind
    sources: tuple[SampleSource, ...] = Field(min_length=1)
    weight: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    mandatory: bool = False
    readings: int | None = Field(default=1, ge=1)
    vae: ImageTransform | None = None
    vit: ImageTransform | None = None
    frames: FrameSampling | None = None
    image_field: str = ""
    text_field: str = ""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        needed = {
            GroupKind.TEXT_TO_IMAGE: ("vae",),
            GroupKind.UNDERSTANDING: ("vit",),
            GroupKind.EDITING: ("vae", "vit"),
        }[self.kind]
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(
                    f"SampleGroup {self.name}.{name}: expected an image transform for kind "
                    f"{self.kind}, found none."
                )
        names = Counter(source.name for source in self.sources)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(
                f"SampleGroup {self.name}.sources: expected a name of its own for each, found "
                f"{twice} more than once."
            )
        if self.weight == 0 and not self.mandatory:
            raise ValueError(
                f"SampleGroup {self.name}.weight: expected more than 0 for a group that is not "
                "mandatory, found 0: nothing of it would be read. Leave the group out."
            )
        return self


class SpecialTokenNames(Job):
    """Tokens of the vocabulary that delimit texts and images.

    Attributes:
        bos: before each text.
        eos: after each text.
        start_of_image: before the patches of an image.
        end_of_image: after them.
    """

    bos: str = "<|im_start|>"
    eos: str = "<|im_end|>"
    start_of_image: str = "<|vision_start|>"
    end_of_image: str = "<|vision_end|>"


class MultimodalJob(Job):
    """A stream of packed multimodal rows.

    Attributes:
        groups: what is mixed.
        tokenizer: folder (local or `s3://`) with `tokenizer.json`.
        special_tokens: that delimit texts and images.
        limits: budgets of a row.
        vision: what the image encoders expect.
        dropout: share of conditions left out.
        loss_weighting: weights of predicted text.
        seed: of everything that is drawn.
    """

    groups: tuple[SampleGroup, ...] = Field(min_length=1)
    tokenizer: str = Field(min_length=1)
    special_tokens: SpecialTokenNames = SpecialTokenNames()
    limits: RowLimits = RowLimits()
    vision: VisionConfig = VisionConfig()
    dropout: DropoutConfig = DropoutConfig()
    loss_weighting: LossWeighting = LossWeighting.SQUARE
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        names = Counter(group.name for group in self.groups)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(
                f"MultimodalJob.groups: expected a name of its own for each, found {twice} more "
                "than once."
            )
        for group in self.groups:
            self._check_grid(group)
        return self

    def _check_grid(self, group: SampleGroup) -> None:
        """Strides are multiples of patches, and no image has more patches a side than ids."""
        vision = self.vision
        for name, patch, side in (
            ("vit", vision.vit_patch_size, vision.vit_max_side),
            ("vae", vision.vae_downsample, vision.vae_max_side),
        ):
            transform = getattr(group, name)
            if transform is None:
                continue
            if transform.stride % patch:
                raise ValueError(
                    f"SampleGroup {group.name}.{name}.stride: expected a multiple of {patch}, the "
                    f"pixels of one of its patches, found {transform.stride}."
                )
            if transform.max_size > patch * side + patch - 1:
                raise ValueError(
                    f"SampleGroup {group.name}.{name}.max_size: expected at most {patch * side} "
                    f"({side} patches of {patch} pixels), found {transform.max_size}. Lower it or "
                    f"raise vision.{name}_max_side."
                )


class PackMultimodalJob(Job):
    """Packed multimodal rows in a store.

    Attributes:
        stream: what is packed; all its groups have an end.
        epochs: epochs written one after the other, each with its own draws.
        store: folder or `s3://` prefix under which datasets stand.
        name: name of the dataset in the store.
        rows_per_part: rows of one Parquet part, the unit of retry.
    """

    stream: MultimodalJob
    epochs: int = Field(default=1, ge=1)
    store: str = Field(min_length=1)
    name: str = Field(default="multimodal", pattern=NAME)
    rows_per_part: int = Field(default=64, ge=1)

    @model_validator(mode="after")
    def _ends(self) -> Self:
        endless = [group.name for group in self.stream.groups if group.readings is None]
        if endless:
            raise ValueError(
                f"PackMultimodalJob.stream.groups: expected `readings` for each, found none for "
                f"{endless}. Say how often they are read; what has no end cannot be stored."
            )
        return self
