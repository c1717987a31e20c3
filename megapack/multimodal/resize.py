"""Size of an image after resizing, from its size before: no pixels are read.

An image keeps its shape as far as the stride allows. Where no limit binds the size is the one
BAGEL's transform gives. Where one binds, both sides shrink by the same factor and are then rounded
so that every limit holds; the published rule rounds past its limits and, with too many pixels,
scales each side by the ratio of the areas, which is the square of what is needed.
"""

from math import ceil, floor, sqrt

from megapack.errors import DataError
from megapack.multimodal.config import ImageTransform

Size = tuple[int, int]


def resized(width: int, height: int, transform: ImageTransform, *, images: int = 1) -> Size:
    """Width and height after resizing, in pixels.

    `max_size` and `max_pixels // images` always hold; `min_size` holds where an image of this shape
    can have it within the others.

    >>> resized(640, 480, ImageTransform(stride=16, max_size=512, min_size=256))
    (512, 384)

    Args:
        width: pixels.
        height: pixels.
        transform: limits and stride.
        images: images of the sample that share `max_pixels`.

    Returns:
        Width and height, each a multiple of the stride and at least one stride.

    Raises:
        DataError: the image has no pixels, or there are so many images that the share of each is
            less than a square of one stride.
    """
    if min(width, height, images) < 1:
        raise DataError(
            f"resize: expected a width, a height and a number of images of at least 1, found "
            f"{width} by {height} pixels, {images} images."
        )
    most = transform.max_pixels // images // transform.stride**2
    if most < 1:
        raise DataError(
            f"resize: expected at least {transform.stride**2} pixels for each of {images} images, "
            f"found a share of {transform.max_pixels // images} of max_pixels = "
            f"{transform.max_pixels}. Raise max_pixels or take fewer images."
        )
    scale = min(transform.max_size / max(width, height), 1.0)
    scale = max(scale, transform.min_size / min(width, height))
    sides = (_strides(width, scale, transform.stride), _strides(height, scale, transform.stride))
    longest, shortest = transform.max_size // transform.stride, transform.min_size
    if (
        max(sides) > longest
        or sides[0] * sides[1] > most
        or min(sides) * transform.stride < shortest
    ):
        sides = _within(width, height, scale, transform, most)
    return sides[0] * transform.stride, sides[1] * transform.stride


def _strides(side: int, scale: float, stride: int) -> int:
    """Strides of a scaled side, rounded twice (to pixels, to strides) as the published rule is."""
    return max(1, round(round(side * scale) / stride))


def _within(width: int, height: int, scale: float, transform: ImageTransform, most: int) -> Size:
    """Sides in strides that hold all limits and keep the shape best, at most `most` in area."""
    stride, longest = transform.stride, transform.max_size // transform.stride
    scale = min(
        scale,
        longest * stride / max(width, height),
        sqrt(most / (width * height)) * stride,
    )
    wide = _neighbours(width * scale / stride, min(longest, most))
    high = _neighbours(height * scale / stride, min(longest, most))
    fitting = [(a, b) for a in wide for b in high if a * b <= most]

    def badness(sides: Size) -> tuple[bool, float, int]:
        a, b = sides
        shape = (a * height) / (b * width)
        return min(a, b) * stride < transform.min_size, max(shape, 1 / shape), -a * b

    return min(fitting, key=badness)


def _neighbours(value: float, most: int) -> tuple[int, int]:
    """The whole numbers around a value, from 1 to `most`."""
    return min(max(floor(value), 1), most), min(max(ceil(value), 1), most)
