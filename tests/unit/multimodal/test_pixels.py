import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from megapack.errors import ContractError, DataError
from megapack.multimodal.pixels import MOST_PIXELS, TooManyPixelsError, image_size, with_pixels
from megapack.records.multimodal_sample import PlanItem, Sample, SampleRef, SpanKind

REF = SampleRef(group="faces", source="main", file="a.parquet", row=7)
PHOTO = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)


def encoded(image, form="PNG", **options):
    stream = BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def decoded(data, width=None, height=None):
    """Pixels of one image, in its own size unless said otherwise."""
    size = image_size(data)
    item = PlanItem(
        kind=SpanKind.VAE, image=0, width=width or size[0], height=height or size[1], loss=True
    )
    (pixels,) = with_pixels(Sample(ref=REF, items=(item,), encoded=(data,))).pixels
    return pixels


def png_header(width, height):
    """A PNG that says how large it is, and has no pixels."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_size_and_pixels_of_a_plain_image():
    data = encoded(Image.fromarray(PHOTO))
    assert image_size(data) == (9, 6)
    pixels = decoded(data)
    assert pixels.dtype == np.uint8
    assert not pixels.flags.writeable
    np.testing.assert_array_equal(pixels, PHOTO)


def test_pixels_are_resized_as_pil_does_it():
    expected = Image.fromarray(PHOTO).resize((4, 3), Image.Resampling.BICUBIC)
    found = decoded(encoded(Image.fromarray(PHOTO)), width=4, height=3)
    np.testing.assert_array_equal(found, np.asarray(expected))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
def test_images_are_turned_upright_in_size_and_pixels(form, orientation):
    """Each file shows an upright picture once its orientation is applied: bright above left."""
    upright = np.zeros((16, 24), dtype=np.uint8)
    upright[:8, :8] = 255
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: upright.T[::-1],
        7: upright[::-1, ::-1].T,
        8: upright.T[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[274] = orientation
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), form, exif=exif)
    assert image_size(data) == (24, 16)
    assert np.abs(decoded(data)[..., 0].astype(int) - upright).max() < 16


def test_broken_exif_leaves_the_image_as_it_is():
    data = encoded(Image.fromarray(PHOTO), "JPEG", exif=b"Exif\x00\x00MM\x00\x2a\x00\x00\xff\xff")
    with pytest.warns(UserWarning, match="Corrupt EXIF data"):
        pixels = decoded(data)
    assert pixels.shape == (6, 9, 3)


def grey_16():
    return Image.fromarray(np.array([[0, 0x80FF, 0xFFFF]], dtype=np.uint16))


def palette(**options):
    image = Image.new("P", (3, 1))
    image.putpalette([0, 0, 0, 128, 128, 128, 255, 255, 255])
    image.putdata([0, 1, 2])
    return encoded(image, **options)


GREYS = [[0, 0, 0], [128, 128, 128], [255, 255, 255]]
LINE = Image.fromarray(np.array([[0, 128, 255]], dtype=np.uint8))


@pytest.mark.parametrize(
    "data",
    [
        encoded(LINE),
        encoded(LINE, "PPM"),
        encoded(grey_16()),
        encoded(grey_16(), "TIFF"),
        b"P5 3 1 65535 " + np.array([0, 0x80FF, 0xFFFF], dtype=">u2").tobytes(),
        palette(),
        palette(form="GIF"),
        encoded(LINE.convert("CMYK"), "TIFF"),
        encoded(LINE.convert("LA")),
    ],
    ids="grey ppm png16 tiff16 ppm16 palette gif cmyk alpha".split(),  # noqa: SIM905 - short
)
def test_every_mode_becomes_rgb_of_8_bits(data):
    assert decoded(data).tolist() == [GREYS]


def test_transparency_shows_white():
    clear = np.array([[[10, 20, 30, 255], [10, 20, 30, 0]]], dtype=np.uint8)
    assert decoded(encoded(Image.fromarray(clear))).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    assert decoded(palette(transparency=0)).tolist() == [[[255] * 3, *GREYS[1:]]]
    assert decoded(palette(transparency=bytes([0, 255, 0]))).tolist() == [
        [[255] * 3, GREYS[1], [255] * 3]
    ]


def test_an_animation_gives_its_first_picture():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decoded(data)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_files_that_end_early_are_refused_with_their_place(form):
    data = encoded(Image.fromarray(np.tile(PHOTO, (8, 8, 1))), form)
    assert image_size(data) == (72, 48)
    with pytest.raises(DataError, match=r"group faces, source main, a\.parquet, row 7, image 0: "):
        decoded_anyway(data[: len(data) * 2 // 3])


def decoded_anyway(data):
    item = PlanItem(kind=SpanKind.VAE, image=0, width=8, height=8)
    return with_pixels(Sample(ref=REF, items=(item,), encoded=(data,)))


@pytest.mark.parametrize("data", [b"", b"no image", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\xff\xd8\xff"])
def test_what_is_no_image_is_refused(data):
    with pytest.raises(DataError, match=f"found {len(data)} bytes"):
        image_size(data)


def test_floating_point_pixels_are_refused():
    data = encoded(Image.new("F", (2, 2)), "TIFF")
    with pytest.raises(DataError, match="pixels of mode F"):
        decoded_anyway(data)


@pytest.mark.parametrize("side", [8193, 12000, 60000])
def test_bombs_are_refused_by_their_header(side):
    """Above our bound, PIL's warning, and PIL's error; PIL's own bound is not moved."""
    before = Image.MAX_IMAGE_PIXELS
    assert before > MOST_PIXELS
    with pytest.raises(TooManyPixelsError, match=f"expected at most {MOST_PIXELS} pixels"):
        image_size(png_header(side, side))
    assert before == Image.MAX_IMAGE_PIXELS


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_bytes_give_pixels_or_a_data_error(form, changes):
    data = bytearray(encoded(Image.fromarray(PHOTO), form))
    for place, value in changes:
        data[place % len(data)] = value
    try:
        assert min(image_size(bytes(data))) > 0
        assert decoded_anyway(bytes(data)).pixels[0].shape == (8, 8, 3)
    except DataError:
        pass


def test_an_image_shown_twice_is_decoded_once(monkeypatch):
    opened = []
    original = Image.open
    monkeypatch.setattr(
        "megapack.multimodal.pixels.Image.open",
        lambda *args, **options: opened.append(1) or original(*args, **options),
    )
    text = PlanItem(kind=SpanKind.TEXT, text=np.zeros(1, dtype=np.int32))
    images = [
        PlanItem(kind=kind, image=number, width=size, height=4)
        for kind, number, size in (
            (SpanKind.VAE, 1, 8),
            (SpanKind.VIT, 0, 4),
            (SpanKind.VIT, 1, 4),
            (SpanKind.VAE, 1, 8),
        )
    ]
    files = tuple(encoded(Image.fromarray(picture)) for picture in (PHOTO, PHOTO[::-1]))
    sample = Sample(ref=REF, items=(images[0], text, *images[1:]), encoded=files)
    pixels = with_pixels(sample).pixels
    assert len(opened) == 2
    assert [picture.shape for picture in pixels] == [(4, 8, 3), (4, 4, 3), (4, 4, 3), (4, 8, 3)]
    assert pixels[0] is pixels[3]
    np.testing.assert_array_equal(pixels[1], decoded(files[0], 4, 4))


def test_an_item_without_its_image_is_our_fault():
    item = PlanItem(kind=SpanKind.VIT, image=2, width=4, height=4)
    with pytest.raises(ContractError, match="expected items to show one of 1 images, found 2"):
        with_pixels(Sample(ref=REF, items=(item,), encoded=(b"",)))
