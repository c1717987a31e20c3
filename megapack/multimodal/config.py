"""Choices of how samples are made and written."""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from megapack.errors import ConfigError


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ImageTransform(_Frozen):
    """How images of a group are resized for one use.

    An image keeps its shape as far as the stride allows. Limits hold exactly, the lower one last in
    rank: `max_pixels`, then `max_size`, then `min_size`.

    Attributes:
        stride: both sides become multiples of it.
        max_size: pixels of the longer side, at most.
        min_size: pixels of the shorter side, at least; smaller images are enlarged.
        max_pixels: pixels of an image, at most; shared among the images of a sample with several.
    """

    stride: int = Field(ge=1)
    max_size: int = Field(ge=1)
    min_size: int = Field(ge=1)
    max_pixels: int = Field(default=14 * 14 * 9 * 1024, ge=1)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.stride <= self.max_size or self.min_size > self.max_size:
            raise ValueError(
                f"ImageTransform: expected stride and min_size of at most max_size = "
                f"{self.max_size}, found stride {self.stride} and min_size {self.min_size}."
            )
        if self.max_pixels < self.stride**2:
            raise ValueError(
                f"ImageTransform.max_pixels: expected at least stride^2 = {self.stride**2}, found "
                f"{self.max_pixels}."
            )
        return self


class FrameRule(StrEnum):
    """Which frames of a video are taken: one drawn, or the middle one, of each of equal parts."""

    RANDOM = "random"
    MIDDLE = "middle"


class FrameSampling(_Frozen):
    """How many frames of a video are taken, and which; a video is an ordered list of images.

    Attributes:
        min_frames: the number of frames is drawn between this
        max_frames: and this; a shorter video gives all of its frames.
        rule: which.
    """

    min_frames: int = Field(default=8, ge=1)
    max_frames: int = Field(ge=1)
    rule: FrameRule = FrameRule.RANDOM

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min_frames > self.max_frames:
            raise ValueError(
                f"FrameSampling: expected min_frames of at most max_frames = {self.max_frames}, "
                f"found {self.min_frames}."
            )
        return self


class PatchPositions(StrEnum):
    """Position ids of patches: by row and column, or by where they lie in a grid of full size."""

    EXTRAPOLATE = "extrapolate"
    INTERPOLATE = "interpolate"


Channels = tuple[float, float, float]


class VisionConfig(_Frozen):
    """What the model's image encoders expect.

    Attributes:
        vit_patch_size: pixels of a VIT patch's side.
        vit_max_side: patches of a VIT image's side, at most; also the stride of its position ids.
        vae_downsample: pixels of a VAE latent's side.
        vae_max_side: latents of a VAE image's side, at most; also the stride of its position ids.
        positions: how patches and latents are numbered.
        vit_mean: of each channel, of pixels in [0, 1].
        vit_std: likewise.
        vae_mean: likewise.
        vae_std: likewise.
    """

    vit_patch_size: int = Field(default=14, ge=1)
    vit_max_side: int = Field(default=70, ge=1)
    vae_downsample: int = Field(default=16, ge=1)
    vae_max_side: int = Field(default=32, ge=1)
    positions: PatchPositions = PatchPositions.EXTRAPOLATE
    vit_mean: Channels = (0.5, 0.5, 0.5)
    vit_std: Channels = (0.5, 0.5, 0.5)
    vae_mean: Channels = (0.5, 0.5, 0.5)
    vae_std: Channels = (0.5, 0.5, 0.5)


class DropoutConfig(_Frozen):
    """Share of conditions that are left out, for classifier-free guidance.

    Attributes:
        text: of texts that are conditions.
        vit: of VIT images that are conditions.
        vae: of clean VAE images that are conditions.
    """

    text: float = Field(default=0.1, ge=0.0, le=1.0)
    vit: float = Field(default=0.4, ge=0.0, le=1.0)
    vae: float = Field(default=0.1, ge=0.0, le=1.0)


class LossWeighting(StrEnum):
    """Weight of each predicted token of a text with n of them: 1, 1/n, or 1/sqrt(n)."""

    TOKEN = "token"
    SAMPLE = "sample"
    SQUARE = "square"


class SpecialTokens(_Frozen):
    """Ids of the tokens that delimit texts and images.

    Attributes:
        bos: before each text.
        eos: after each text.
        start_of_image: before the patches of an image.
        end_of_image: after them.
    """

    bos: int = Field(ge=0)
    eos: int = Field(ge=0)
    start_of_image: int = Field(ge=0)
    end_of_image: int = Field(ge=0)


class WritingRules(_Frozen):
    """All that decides how a sample is written, but for what is drawn.

    Attributes:
        special: ids of delimiting tokens.
        vision: patches.
        loss_weighting: weights of predicted text.
    """

    special: SpecialTokens
    vision: VisionConfig = VisionConfig()
    loss_weighting: LossWeighting = LossWeighting.SQUARE


class MaskForm(StrEnum):
    """How a batch says who sees whom: a mask for each sample, or columns for flex attention."""

    NESTED = "nested"
    FLEX = "flex"

    @classmethod
    def of(cls, value: object) -> "MaskForm":
        """The form of that name; a form is its own.

        Raises:
            ConfigError: there is none.
        """
        try:
            return cls(value)  # type: ignore[arg-type]  # what is no text is refused as well
        except ValueError as error:
            forms = " or ".join(repr(form.value) for form in cls)
            raise ConfigError(f"mask: expected {forms}, found {value!r}.") from error
