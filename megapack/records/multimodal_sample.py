"""One multimodal sample on its way into a row: what it is made of, and how it lies when written.

A sample is an ordered list of items: a stretch of text, an image as the vision transformer sees it
(VIT), an image as the variational autoencoder sees it (VAE). Written out, a text is its ids between
a begin and an end token, and an image is its grid of patches or latents between a start and an end
of image. Items that are seen together form a split, the unit of attention: each item is a split of
its own, but for later frames of a video, which join the split before them.

Conditions may be dropped for classifier-free guidance. What was dropped and which noise levels were
drawn stands in `LaidSample`, so every length is that of what is written, never an estimate.

Letters: I items of a sample, h and w pixels after resizing.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError

UInt8 = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


class SpanKind(StrEnum):
    """What an item is written as."""

    TEXT = "text"
    VIT = "vit"
    VAE = "vae"


class AttentionMode(StrEnum):
    """How a split is seen.

    CAUSAL: each token sees what stands before it in the sample, and itself. FULL: tokens of the
    split see each other and what stands before. NOISE: as FULL, and no other split sees it.
    """

    CAUSAL = "causal"
    FULL = "full"
    NOISE = "noise"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRef:
    """Where a sample comes from; enough to read it again.

    Attributes:
        group: name of its group.
        source: name of its source in the group.
        file: path of the file, relative to the source's address.
        row: row of the Parquet file or line of the JSONL file, from 0.
        reading: which reading of the group in this epoch it belongs to, from 0.
    """

    group: str
    source: str
    file: str
    row: int
    reading: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSize:
    """What a sample takes of a row.

    Attributes:
        tokens: positions, begin and end tokens included.
        vit_tokens: patches of its VIT images.
        vae_tokens: latents of its VAE images.
        images: images, VIT and VAE ones counted alike.
    """

    tokens: int = 0
    vit_tokens: int = 0
    vae_tokens: int = 0
    images: int = 0

    def plus(self, other: "SampleSize") -> "SampleSize":
        """Sum of two sizes."""
        return SampleSize(
            tokens=self.tokens + other.tokens,
            vit_tokens=self.vit_tokens + other.vit_tokens,
            vae_tokens=self.vae_tokens + other.vae_tokens,
            images=self.images + other.images,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanItem:
    """One item of a sample.

    Attributes:
        kind: what it is written as.
        text: int32 [n], ids without begin and end tokens; TEXT only, else None.
        image: index into `Sample.encoded`; VIT and VAE only, else -1.
        height: pixels after resizing, a multiple of the patch; 0 for text.
        width: likewise.
        loss: text that is predicted (its ids and the end token), or a VAE image that is noised and
            predicted. A VIT image has none.
        droppable: a condition that dropout may leave out.
        end_label: what the item's last token (end of text or of image) is trained to predict, or
            None.
        joins: a later frame: it belongs to the split of the item before it, shares its noise level
            and is dropped with it.
        position_step: how far the position moves on after the image; None for the rule of its kind:
            0 after a VAE image with loss, else 1.
    """

    kind: SpanKind
    text: Int32 | None = None
    image: int = -1
    height: int = 0
    width: int = 0
    loss: bool = False
    droppable: bool = False
    end_label: int | None = None
    joins: bool = False
    position_step: int | None = None

    def __post_init__(self) -> None:
        is_text = self.kind is SpanKind.TEXT
        if is_text != (self.text is not None) or is_text != (self.image < 0):
            raise ContractError(
                f"PlanItem: expected text without an image or an image without text, found kind "
                f"{self.kind}, image {self.image}, text {self.text is not None}."
            )
        if self.kind is SpanKind.VIT and self.loss:
            raise ContractError("PlanItem: expected a VIT image without loss, found one with loss.")
        if is_text and self.joins:
            raise ContractError("PlanItem: expected only images to join a split, found text.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """A sample as its group made it.

    Attributes:
        ref: where it comes from.
        items: what it is made of, in order.
        encoded: the images' files as they were read (JPEG, PNG, ...), each once.
        pixels: uint8 [h, w, 3], RGB, one for each image item in the order of items, resized; empty
            until they are decoded.
    """

    ref: SampleRef
    items: tuple[PlanItem, ...]
    encoded: tuple[bytes, ...] = ()
    pixels: tuple[UInt8, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaidSample:
    """A sample as it is written into a row, whichever row that is.

    Attributes:
        sample: what it is.
        kept: bool [I], False for a condition that was dropped.
        timesteps: float32 [I], noise level before the sigmoid, a standard normal draw; the same for
            all frames of a split; -inf for text and clean images.
        starts: int32 [I], first position of each item, from the sample's start.
        lengths: int32 [I], positions of each item, begin and end tokens included; 0 when dropped.
        positions: int32 [I], position id of the item's first token.
        size: what it takes of a row.
    """

    sample: Sample
    kept: Bool
    timesteps: Float32
    starts: Int32
    lengths: Int32
    positions: Int32
    size: SampleSize
