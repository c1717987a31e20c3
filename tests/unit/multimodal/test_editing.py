from collections import Counter

import numpy as np
import pytest

from megapack.multimodal.draft import SampleMaking
from megapack.multimodal.editing import editing
from megapack.multimodal.rejected import RejectedError
from megapack.records.rejects import RejectReason
from tests.support.multimodal_sources import VAE, VIT, byte_ids, outline, png

MAKING = SampleMaking(encode=byte_ids, vae=VAE, vit=VIT)
IMAGES = [png(color=(n, 0, 0)) for n in range(5)]
STEPS = [["a", "A"], "b.", ["c"], ["d"]]


def made(images=IMAGES, steps=STEPS, *, seed=0):
    return editing(images, steps, MAKING, np.random.default_rng(seed))


def test_two_images_are_one_edit():
    drafted = made(IMAGES[:2], [["turn it"]])
    assert outline(drafted) == ["vae0?", "vit0?", "turn it?", "vae1!"]
    assert drafted.encoded == tuple(IMAGES[:2])


def test_stretches_of_one_and_two_steps_are_drawn_and_two_are_joined_half_the_time():
    shapes = Counter()
    for seed in range(400):
        drafted = made(seed=seed)
        start = IMAGES.index(drafted.encoded[0])
        last = IMAGES.index(drafted.encoded[-1])
        shapes[start, last - start, len(drafted.items)] += 1
    # Start 3 can only go one step; elsewhere one or two, in one edit of 4 items or in two of 8.
    expected = {(3, 1, 4): 100} | {
        (start, *shape): count
        for start in range(3)
        for shape, count in (((1, 4), 50), ((2, 4), 25), ((2, 8), 25))
    }
    assert set(shapes) == set(expected)
    assert all(abs(shapes[key] - count) < count * 0.6 for key, count in expected.items())


def test_an_image_in_the_middle_is_predicted_and_then_a_condition():
    written = {tuple(outline(made(IMAGES[:3], STEPS[:2], seed=seed))) for seed in range(200)}
    two_steps = ["vae1!", "vae1?", "vit1?", "b.?", "vae2!"]
    assert ("vae0?", "vit0?", "a?", *two_steps) in written
    assert ("vae0?", "vit0?", "A?", *two_steps) in written


def test_a_joined_edit_reaches_the_last_image_where_the_published_one_stops_before_it():
    joined = {
        (tuple(outline(one)), IMAGES.index(one.encoded[1]))
        for one in (made(IMAGES[:3], STEPS[:2], seed=seed) for seed in range(60))
        if len(one.items) == 4 and " " in outline(one)[2]
    }
    assert joined == {(("vae0?", "vit0?", f"{a}. b.?", "vae1!"), 2) for a in "aA"}


@pytest.mark.parametrize(
    ("images", "steps", "reason"),
    [
        (None, STEPS, RejectReason.MISSING_FIELD),
        (IMAGES, None, RejectReason.MISSING_FIELD),
        ([], [], RejectReason.TOO_FEW_IMAGES),
        (IMAGES[:1], [], RejectReason.TOO_FEW_IMAGES),
        (IMAGES, STEPS[:3], RejectReason.IMAGE_COUNT),
        (IMAGES, [*STEPS, "e"], RejectReason.IMAGE_COUNT),
        (IMAGES[:2], [[" ", None]], RejectReason.NO_TEXT),
        (IMAGES[:2], [None], RejectReason.NO_TEXT),
        ([IMAGES[0], None], ["a"], RejectReason.MISSING_IMAGE),
        ([IMAGES[0], b"junk"], ["a"], RejectReason.UNREADABLE_IMAGE),
        (IMAGES[0], STEPS, RejectReason.UNREADABLE_RECORD),
        (IMAGES, "a", RejectReason.UNREADABLE_RECORD),
        (IMAGES[:2], [[["nested"]]], RejectReason.UNREADABLE_RECORD),
        (IMAGES[:2], [3.5], RejectReason.UNREADABLE_RECORD),
    ],
)
def test_records_that_are_unfit_are_left_out_and_say_why(images, steps, reason):
    with pytest.raises(RejectedError) as error:
        made(images, steps)
    assert error.value.reject.reason is reason
    assert "expected" in error.value.reject.detail
