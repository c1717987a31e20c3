from collections import Counter

import numpy as np
import pytest

from megapack.multimodal.config import FrameSampling, ImageTransform
from megapack.multimodal.draft import SampleMaking
from megapack.multimodal.rejected import RejectedError
from megapack.multimodal.text_to_image import text_to_image
from megapack.records.rejects import RejectReason
from tests.support.multimodal_sources import VAE, byte_ids, outline, png

MAKING = SampleMaking(encode=byte_ids, vae=VAE)


def made(captions, image=None, *, making=MAKING, seed=0):
    generator = np.random.default_rng(seed)
    return text_to_image(image or png(32, 48), captions, making, generator)


def reason(captions, image=None):
    with pytest.raises(RejectedError) as error:
        made(captions, image)
    return error.value.reject.reason


def test_the_caption_is_a_condition_and_the_image_is_predicted():
    drafted = made('{"a": " a cat. "}')
    assert outline(drafted) == [" a cat. ?", "vae0!"]
    assert (drafted.items[1].height, drafted.items[1].width) == (48, 32)
    assert drafted.encoded == (png(32, 48),)


@pytest.mark.parametrize(
    "captions",
    [
        '{"a": "one", "b": "two", "c": null}',
        '["one", "two", " "]',
        ["one", None, "two"],
        {"a": "one", "b": "two"},
        [("a", "one"), ("b", "two")],
    ],
)
def test_captions_of_every_form_are_drawn_alike(captions):
    drawn = Counter(outline(made(captions, seed=seed))[0] for seed in range(60))
    assert set(drawn) == {"one?", "two?"}
    assert min(drawn.values()) > 15


@pytest.mark.parametrize("text", ["plain", "[photo] a cat", "{curly", '"quoted"', "1", "{1: 2}"])
def test_text_that_is_no_json_is_the_caption(text):
    assert outline(made(text))[0] == f"{text}?"


@pytest.mark.parametrize(
    "captions", [None, "", " \n", "{}", "[]", [], {}, ["", None], '{"a": " "}']
)
def test_a_record_without_a_caption_is_left_out_not_trained_on_a_blank(captions):
    assert reason(captions) is RejectReason.NO_TEXT


@pytest.mark.parametrize(
    ("captions", "image"),
    [
        ('{"a": "cut off', None),
        ('["cut", ', None),
        ('{"a": {"b": "nested"}}', None),
        (["a", 3], None),
        (float("nan"), None),
        (b"bytes", None),
        ("a \ud800", None),
        ("a", "path.png"),
        ("a", 3),
        ("a", {"bytes": "text"}),
        ("a", [png(), 3]),
    ],
)
def test_values_of_another_type_cost_that_record(captions, image):
    assert reason(captions, image) is RejectReason.UNREADABLE_RECORD


def test_images_that_are_missing_empty_or_no_images_are_left_out():
    generator = np.random.default_rng(0)
    for image, expected in (
        (None, RejectReason.MISSING_IMAGE),
        ({"bytes": None, "path": "a.png"}, RejectReason.MISSING_IMAGE),
        ([png(), None], RejectReason.MISSING_IMAGE),
        ([], RejectReason.TOO_FEW_IMAGES),
        (b"", RejectReason.UNREADABLE_IMAGE),
        (b"GIF89a", RejectReason.UNREADABLE_IMAGE),
        (b"P6 9000 9000 255 ", RejectReason.TOO_MANY_PIXELS),
    ):
        with pytest.raises(RejectedError) as error:
            text_to_image(image, "a", MAKING, generator)
        assert error.value.reject.reason is expected, image


def test_a_list_of_images_is_a_video_whose_frames_are_one_split():
    frames = [png(color=(n, 0, 0)) for n in range(9)]
    sampling = FrameSampling(min_frames=3, max_frames=3)
    making = SampleMaking(encode=byte_ids, vae=VAE, frames=sampling)
    drafted = made("a", frames, making=making, seed=3)
    assert outline(drafted) == ["a?", "vae0!", "vae1!", "vae2!"]
    chosen = [frames.index(data) for data in drafted.encoded]
    video = drafted.items[1:]
    assert [item.joins for item in video] == [False, True, True]
    steps = [chosen[1] - chosen[0], chosen[2] - chosen[1], None]
    assert [item.position_step for item in video] == steps
    assert len(made("a", frames).items) == 10


def test_images_of_one_sample_share_the_pixels():
    making = SampleMaking(
        encode=byte_ids,
        vae=ImageTransform(stride=16, max_size=64, min_size=16, max_pixels=64 * 64),
    )
    alone = made("a", png(64, 64), making=making).items[1]
    four = made("a", [png(64, 64, (n, 0, 0)) for n in range(4)], making=making).items[1]
    assert (alone.height, alone.width, four.height, four.width) == (64, 64, 32, 32)
    # A frame that comes again is kept once and counts again.
    twice = made("a", [png(64, 64)] * 4, making=making)
    assert len(twice.encoded) == 1
    assert twice.items[4].height == 32
    with pytest.raises(RejectedError) as error:
        made("a", [png(64, 64)] * 17, making=making)
    assert error.value.reject.reason is RejectReason.TOO_MANY_IMAGES
