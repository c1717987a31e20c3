"""`SampleDraft`: gathers the items of one sample while its record is read.

Images are known by the headers of their files; sizes follow when all are there, because the images
of a sample share `max_pixels`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from megapack.errors import ContractError, DataError
from megapack.multimodal.config import FrameSampling, ImageTransform
from megapack.multimodal.pixels import TooManyPixelsError, image_size
from megapack.multimodal.rejected import RejectedError
from megapack.multimodal.resize import resized
from megapack.records.multimodal_sample import Int32, PlanItem, SpanKind
from megapack.records.rejects import RejectReason


class ImageFiles(Protocol):
    """Image files that records name. Both methods raise DataError for what is not there."""

    def read(self, path: str) -> bytes:
        """Content of a file."""

    def names(self, path: str) -> Sequence[str]:
        """Names of the files in a folder, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleMaking:
    """How records of a group become samples.

    Attributes:
        encode: ids of a text; raises DataError for one that is no text.
        vae: how images are resized for the VAE, or None where the kind has no use for it.
        vit: likewise for the vision transformer.
        frames: how frames of a video are chosen; None takes all.
        most_characters: of a text; a longer one is too long in any case, and encoding it would
            hold up the stream for minutes. None for no limit.
    """

    encode: Callable[[str], Int32]
    vae: ImageTransform | None = None
    vit: ImageTransform | None = None
    frames: FrameSampling | None = None
    most_characters: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftedSample:
    """What a record became.

    Attributes:
        items: in order.
        encoded: image files, each once.
    """

    items: tuple[PlanItem, ...]
    encoded: tuple[bytes, ...]


class SampleDraft:
    """Items of one sample, in order. Every method raises RejectedError for what is unfit."""

    def __init__(self, making: SampleMaking) -> None:
        self._making = making
        self._items: list[PlanItem] = []
        self._encoded: dict[bytes, int] = {}
        self._sizes: list[tuple[int, int]] = []
        self._shown = 0

    def text(self, text: str) -> None:
        """A text that is read and never dropped."""
        self._add_text(PlanItem(kind=SpanKind.TEXT, text=self._ids(text)))

    def answer(self, text: str) -> None:
        """A text that is predicted."""
        self._add_text(PlanItem(kind=SpanKind.TEXT, text=self._ids(text), loss=True))

    def condition(self, text: str) -> None:
        """A text that dropout may leave out."""
        self._add_text(PlanItem(kind=SpanKind.TEXT, text=self._ids(text), droppable=True))

    def image(self, data: bytes) -> int:
        """Take in an image; gives its number for the methods below.

        A file that comes twice is kept once and counts twice.
        """
        self._shown += 1
        if data not in self._encoded:
            try:
                width, height = image_size(data)
            except TooManyPixelsError as error:
                raise RejectedError(RejectReason.TOO_MANY_PIXELS, str(error)) from error
            except DataError as error:
                raise RejectedError(RejectReason.UNREADABLE_IMAGE, str(error)) from error
            self._encoded[data] = len(self._encoded)
            self._sizes.append((width, height))
        return self._encoded[data]

    def vit(self, image: int) -> None:
        """The image as it is understood, never dropped."""
        self._items.append(PlanItem(kind=SpanKind.VIT, image=image))

    def conditions(self, image: int) -> None:
        """The image as a condition, clean, for the VAE and then for the vision transformer."""
        self._items.append(PlanItem(kind=SpanKind.VAE, image=image, droppable=True))
        self._items.append(PlanItem(kind=SpanKind.VIT, image=image, droppable=True))

    def target(self, image: int) -> None:
        """The image as it is predicted."""
        self._items.append(PlanItem(kind=SpanKind.VAE, image=image, loss=True))

    def target_frames(self, images: Sequence[int], indices: Sequence[int]) -> None:
        """Frames of a video that are predicted together; positions follow their indices."""
        for number, image in enumerate(images):
            last = number + 1 == len(images)
            self._items.append(
                PlanItem(
                    kind=SpanKind.VAE,
                    image=image,
                    loss=True,
                    joins=number > 0,
                    position_step=None if last else indices[number + 1] - indices[number],
                )
            )

    @property
    def is_supervised(self) -> bool:
        """Whether something is predicted."""
        return any(item.loss for item in self._items)

    def finish(self) -> DraftedSample:
        """The items with the sizes of their images."""
        try:
            items = tuple(map(self._sized, self._items))
        except DataError as error:
            # A share of `max_pixels` too small for one patch.
            raise RejectedError(RejectReason.TOO_MANY_IMAGES, str(error)) from error
        return DraftedSample(items=items, encoded=tuple(self._encoded))

    def _ids(self, text: str) -> Int32:
        most = self._making.most_characters
        if most is not None and len(text) > most:
            raise RejectedError(
                RejectReason.TOO_MANY_TOKENS,
                f"expected a text of at most {most} characters, which max_sample_tokens allows "
                f"for, found one of {len(text)}.",
            )
        try:
            return self._making.encode(text)
        except DataError as error:
            raise RejectedError(RejectReason.UNREADABLE_RECORD, str(error)) from error

    def _add_text(self, item: PlanItem) -> None:
        """A text without tokens (white space, for some tokenizers) is not there."""
        if item.text is not None and item.text.size:
            self._items.append(item)

    def _sized(self, item: PlanItem) -> PlanItem:
        if item.kind is SpanKind.TEXT:
            return item
        transform = self._making.vit if item.kind is SpanKind.VIT else self._making.vae
        if transform is None:
            raise ContractError(f"SampleDraft: expected a transform for {item.kind}, found none.")
        width, height = resized(*self._sizes[item.image], transform, images=self._shown)
        return replace(item, width=width, height=height)
