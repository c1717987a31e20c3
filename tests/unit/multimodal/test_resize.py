import random

import pytest

from megapack.errors import DataError
from megapack.multimodal.config import ImageTransform
from megapack.multimodal.resize import resized

VAE = ImageTransform(stride=16, max_size=1024, min_size=512)
EXTREME = [
    (1, 5000, VAE),
    (1000, 1000, ImageTransform(stride=16, max_size=1000, min_size=9)),
    (5000, 1, ImageTransform(stride=7, max_size=700, min_size=700, max_pixels=49)),
    (30, 30, ImageTransform(stride=14, max_size=980, min_size=378)),
]


def cases():
    """Sizes and transforms of every kind, the same in each run; a quarter has odd shapes."""
    draw = random.Random(0)
    yield from EXTREME
    for number in range(4000):
        stride = draw.randint(1, 40)
        most = draw.randint(stride, 1200)
        least = draw.randint(1, most if number % 2 else stride)
        pixels = draw.choice((draw.randint(stride**2, 2_000_000), 2_000_000))
        width = draw.randint(1, 3000)
        height = draw.randint(1, 3000) if number % 4 == 0 else width * draw.randint(5, 20) // 10 + 1
        yield (
            width,
            height,
            ImageTransform(stride=stride, max_size=most, min_size=least, max_pixels=pixels),
        )


CASES = list(cases())


def published_without_caps(width, height, transform):
    """BAGEL's first step: scale into [min, max], min last, round to pixels and to strides."""
    scale = min(transform.max_size / max(width, height), 1.0)
    scale = max(scale, transform.min_size / min(width, height))
    stride = transform.stride
    return tuple(
        max(stride, int(round(round(side * scale) / stride) * stride)) for side in (width, height)
    )


def test_resize_never_passes_a_limit():
    for width, height, transform in CASES:
        images = min(3, transform.max_pixels // transform.stride**2)
        sides = resized(width, height, transform, images=images)
        assert all(side % transform.stride == 0 and side >= transform.stride for side in sides)
        assert max(sides) <= transform.max_size
        assert sides[0] * sides[1] * images <= transform.max_pixels


def test_resize_is_the_published_size_where_no_limit_binds():
    compared = 0
    for width, height, transform in CASES:
        sides = published_without_caps(width, height, transform)
        if (
            max(sides) <= transform.max_size
            and min(sides) >= transform.min_size
            and sides[0] * sides[1] <= transform.max_pixels
        ):
            compared += 1
            assert resized(width, height, transform) == sides
    assert compared > 500


def test_resize_keeps_the_shorter_side_where_the_other_limits_allow():
    compared = 0
    for width, height, transform in CASES:
        stride = transform.stride
        scale = transform.min_size / min(width, height)
        wide, high = (-(-side * scale // stride) * stride for side in (width, height))
        if max(high, wide) <= transform.max_size and high * wide <= transform.max_pixels:
            compared += 1
            assert min(resized(width, height, transform)) >= transform.min_size
    assert compared > 500


def test_resize_leaves_alone_what_has_its_size():
    compared = 0
    for width, height, transform in CASES:
        sides = resized(width, height, transform)
        if min(sides) >= transform.min_size:
            compared += 1
            assert resized(*sides, transform) == sides
    assert compared > 500


def test_resize_keeps_the_shape_to_a_stride():
    """One factor for both sides explains the size, each side rounded by less than a stride."""
    for width, height, transform in CASES:
        sides = resized(width, height, transform)
        stride = transform.stride
        pairs = list(zip(sides, (width, height), strict=True))
        least = max((after - stride - 1) / before for after, before in pairs)
        most = min((after + stride + 1) / before for after, before in pairs)
        assert least <= most


def test_too_many_pixels_shrink_both_sides_by_the_root():
    """The published rule scales both sides by 1/4 here and keeps a sixteenth of the pixels."""
    transform = ImageTransform(stride=16, max_size=1024, min_size=16, max_pixels=512 * 512)
    assert resized(1024, 1024, transform) == (512, 512)


def test_pixels_are_shared_among_the_images_of_a_sample():
    transform = ImageTransform(stride=16, max_size=1024, min_size=16, max_pixels=1024 * 1024)
    assert resized(1024, 1024, transform) == (1024, 1024)
    assert resized(1024, 1024, transform, images=4) == (512, 512)


def test_rounding_up_does_not_pass_the_longest_side():
    """518 is no multiple of 16: rounding gives 528 in the published first step."""
    transform = ImageTransform(stride=16, max_size=518 + 10, min_size=16)
    assert resized(800, 800, transform) == (528, 528)
    assert resized(800, 800, transform.model_copy(update={"max_size": 527})) == (512, 512)


def test_resize_says_what_has_no_size():
    with pytest.raises(DataError, match=r"share of 250 of max_pixels = 1000"):
        resized(
            9, 9, ImageTransform(stride=16, max_size=64, min_size=16, max_pixels=1000), images=4
        )
    with pytest.raises(DataError, match="at least 1, found 0 by 4"):
        resized(0, 4, VAE)
