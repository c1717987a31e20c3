"""Sizes and pixels of encoded images.

Sizes are read from the header, so that a sample can be judged before anything is decoded. What is
decoded is upright (the EXIF orientation is applied, in the size as well), RGB with transparency on
white, of 8 bits a channel (16 bits keep the upper 8), the first picture of an animation. A file
that ends early is an error, never a picture with a grey rest. One that was cut and then closed by
an end mark (a JPEG's, or a PNG's with too little data before it) is not told from a whole one: PIL
gives no sign of it.

Nothing of PIL's global settings is touched; the bound on pixels is ours and below PIL's.
"""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from typing import Final

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from megapack.errors import ContractError, DataError
from megapack.records.multimodal_sample import PlanItem, Sample, SampleRef, SpanKind, UInt8

MOST_PIXELS: Final = 64 * 1024 * 1024
FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SWAPS_SIDES: Final = frozenset({5, 6, 7, 8})
_DAMAGED: Final = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    EOFError,
    MemoryError,
    Warning,
    struct.error,
    zlib.error,
)


class TooManyPixelsError(DataError):
    """An image of more than `MOST_PIXELS` pixels."""


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height of an upright image in pixels, read from its header.

    Args:
        data: an encoded image (JPEG, PNG, WEBP, GIF, BMP, TIFF or PPM).

    Raises:
        DataError: no such image.
        TooManyPixelsError: one of more than `MOST_PIXELS` pixels.
    """
    with _opened(data) as image:
        width, height = image.size
        return (height, width) if _orientation(image) in _SWAPS_SIDES else (width, height)


def with_pixels(sample: Sample) -> Sample:
    """The sample with the pixels of its image items.

    Each file is decoded once, however many items show it, and resized (bicubic, antialiased) to
    each size once.

    Args:
        sample: without pixels.

    Returns:
        The sample with one uint8 [h, w, 3] for each image item, read-only.

    Raises:
        DataError: an image that cannot be decoded; names the sample.
        ContractError: an item shows an image that the sample does not have.
    """
    wanted = [item for item in sample.items if item.kind is not SpanKind.TEXT]
    if any(item.image >= len(sample.encoded) for item in wanted):
        raise ContractError(
            f"{place_of(sample.ref)}: expected items to show one of {len(sample.encoded)} images, "
            f"found {max(item.image for item in wanted)}."
        )
    resized: dict[tuple[int, int, int], UInt8] = {}
    for number in dict.fromkeys(item.image for item in wanted):
        try:
            upright = _decoded(sample.encoded[number])
        except DataError as error:
            raise DataError(f"{place_of(sample.ref)}, image {number}: {error}") from error
        for item in wanted:
            if item.image == number and _key(item) not in resized:
                resized[_key(item)] = _pixels(upright, item)
    return replace(sample, pixels=tuple(resized[_key(item)] for item in wanted))


def _key(item: PlanItem) -> tuple[int, int, int]:
    return item.image, item.height, item.width


def _pixels(image: Image.Image, item: PlanItem) -> UInt8:
    small = image.resize((item.width, item.height), Image.Resampling.BICUBIC)
    pixels = np.asarray(small, dtype=np.uint8)
    pixels.flags.writeable = False
    return pixels


def place_of(ref: SampleRef) -> str:
    """Where a sample is from, as errors name it."""
    return f"group {ref.group}, source {ref.source}, {ref.file}, row {ref.row}"


def _decoded(data: bytes) -> Image.Image:
    """An upright RGB image.

    Raises:
        DataError: it cannot be decoded.
    """
    with _opened(data) as image:
        turn = _UPRIGHT.get(_orientation(image))
        rgb = _rgb(image)
        return rgb if turn is None else rgb.transpose(turn)


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    """An image whose header is read; what damaged bytes raise becomes a DataError."""
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise TooManyPixelsError(
                    f"image: expected at most {MOST_PIXELS} pixels, found {width} by {height}. "
                    "Leave it out or make it smaller."
                )
            yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooManyPixelsError(
            f"image: expected at most {MOST_PIXELS} pixels, found more than PIL opens ({error})."
        ) from error
    except _DAMAGED as error:
        unknown = isinstance(error, UnidentifiedImageError)
        why = "of no such format" if unknown else f"that cannot be read ({error!r})"
        raise DataError(
            f"image: expected a whole file of {', '.join(FORMATS)}, found {len(data)} bytes {why}."
        ) from error


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 where there is none or it cannot be read.

    PIL turns TIFF images itself, and would decode a whole PNG to look for a late EXIF chunk.
    """
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return 1
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except _DAMAGED:
        return 1


def _rgb(image: Image.Image) -> Image.Image:
    """RGB of 8 bits, transparency on white."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError(f"expected 8 or 16 bits a channel, found pixels of mode {image.mode}")
    if not image.has_transparency_data:
        return image.convert("RGB")
    clear = image.convert("RGBA")
    white = Image.new("RGB", clear.size, (255, 255, 255))
    white.paste(clear, mask=clear.getchannel("A"))
    return white
