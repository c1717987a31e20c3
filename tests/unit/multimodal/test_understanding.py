import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import DataError
from megapack.multimodal.config import FrameRule, FrameSampling
from megapack.multimodal.draft import SampleMaking
from megapack.multimodal.rejected import RejectedError
from megapack.multimodal.understanding import understanding
from megapack.records.rejects import RejectReason
from tests.support.multimodal_sources import VIT, byte_ids, chat, outline, png

MAKING = SampleMaking(encode=byte_ids, vit=VIT)
FILES = {
    "a.png": png(color=(1, 0, 0)),
    "b.png": png(color=(2, 0, 0)),
    **{f"v/frame_{n}.png": png(color=(0, n, 0)) for n in range(12)},
    "v/notes.txt": b"",
    "junk.png": b"junk",
}


class Files:
    def read(self, path):
        if path not in FILES:
            raise DataError(f"expected a file {path}, found none.")
        return FILES[path]

    def names(self, path):
        names = [name.split("/")[1] for name in FILES if name.startswith(f"{path.rstrip('/')}/")]
        if not names:
            raise DataError(f"expected a folder {path}, found none.")
        return sorted(names)


def made(record, *, making=MAKING):
    return understanding(record, Files(), making, np.random.default_rng(0))


def reason(record):
    with pytest.raises(RejectedError) as error:
        made(record)
    return error.value.reject.reason


def test_marks_cut_texts_and_take_images_in_their_order():
    drafted = made(
        chat(" Look: <image>\n and <image> ", " First. ", " and? ", "b", image=["b.png", "a.png"])
    )
    # White space goes beside marks alone; the published loader strips texts with a mark whole.
    expected = [" Look:", "vit0", "and", "vit1", " First. !", " and? ", "b!"]
    assert outline(drafted) == expected
    assert drafted.encoded == (FILES["b.png"], FILES["a.png"])


def test_a_file_named_twice_is_kept_once_and_shown_twice():
    drafted = made(chat("<image><image>?", "same", image=["a.png", "a.png"]))
    assert outline(drafted) == ["vit0", "vit0", "?", "same!"]
    assert len(drafted.encoded) == 1


def test_messages_with_parts_are_the_same_record():
    parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    record = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": [{"type": "text", "text": "A dot."}]},
        ],
        "images": ["a.png"],
    }
    assert outline(made(record)) == ["Be brief.", "vit0", "What?", "A dot.!"]


def test_conversations_of_text_alone_are_read():
    assert outline(made(chat("hi <video>", "ho", image=None))) == ["hi <video>", "ho!"]


def test_a_folder_is_a_video_in_the_order_of_its_numbers_wherever_its_mark_stands():
    sampling = FrameSampling(min_frames=3, max_frames=3, rule=FrameRule.MIDDLE)
    making = SampleMaking(encode=byte_ids, vit=VIT, frames=sampling)
    drafted = made(chat("hi", "ho", "<video>\nwhat?", "x", video="v/"), making=making)
    assert outline(drafted) == ["hi", "ho!", "vit0", "vit1", "vit2", "what?", "x!"]
    chosen = [next(name for name, data in FILES.items() if data == e) for e in drafted.encoded]
    assert chosen == ["v/frame_1.png", "v/frame_5.png", "v/frame_9.png"]
    every = made(chat("<video>", "x", video="v"))
    assert every.encoded == tuple(FILES[f"v/frame_{n}.png"] for n in range(12))
    listed = made(chat("<image><video>", "x", video=["b.png"], image="a.png"))
    assert listed.encoded == (FILES["a.png"], FILES["b.png"])


@pytest.mark.parametrize(
    "record",
    [
        chat("<image>", "x"),
        chat("q", "x", image="a.png"),
        chat("<image><image>", "x", image="a.png"),
        chat("<image>", "x <image>", image="a.png"),
        chat("q", "x <image>", image="a.png"),
        chat("q", "x", video="v"),
        chat("<video><video>", "x", video="v"),
        chat("<video>", "x <video>", video="v"),
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
    ],
)
def test_marks_and_images_that_disagree_in_number_are_left_out(record):
    """Published: images without a mark vanish, and marks without an image take the next one."""
    assert reason(record) is RejectReason.IMAGE_COUNT


def test_a_video_under_the_mark_of_an_image_is_told_which_mark_it_needs():
    with pytest.raises(RejectedError, match="`video` needs one <video> mark"):
        made(chat("<image>", "x", video="v"))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, RejectReason.MISSING_FIELD),
        ({"conversations": None}, RejectReason.MISSING_FIELD),
        (chat("<image>", "x", image="none.png"), RejectReason.MISSING_IMAGE),
        (chat("<video>", "x", video="film.mp4"), RejectReason.MISSING_IMAGE),
        (chat("<video>", "x", video=[]), RejectReason.TOO_FEW_IMAGES),
        (chat("<image>", "x", image="junk.png"), RejectReason.UNREADABLE_IMAGE),
        (chat("q"), RejectReason.NOTHING_SUPERVISED),
        (chat("q", " \n"), RejectReason.NOTHING_SUPERVISED),
        ({"conversations": []}, RejectReason.NOTHING_SUPERVISED),
        ({"conversations": [], "image": "a.png"}, RejectReason.NOTHING_SUPERVISED),
        ({"conversations": [{"from": "tool", "value": "x"}]}, RejectReason.UNKNOWN_ROLE),
        (chat("\ud800", "x"), RejectReason.UNREADABLE_RECORD),
        ({"conversations": "text"}, RejectReason.UNREADABLE_RECORD),
        ({"conversations": ["text"]}, RejectReason.UNREADABLE_RECORD),
        ({"conversations": [{"from": ["x"], "value": "x"}]}, RejectReason.UNREADABLE_RECORD),
        (chat(None, "x"), RejectReason.UNREADABLE_RECORD),
        (chat("<image>", "x", image=3), RejectReason.UNREADABLE_RECORD),
        (chat("<image>", "x", image=[None]), RejectReason.UNREADABLE_RECORD),
        (chat("<video>", "x", video=3), RejectReason.UNREADABLE_RECORD),
    ],
)
def test_records_that_are_unfit_are_left_out_and_say_why(record, expected):
    assert reason(record) is expected


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.sampled_from(
        ["human", "gpt", "user", "text", "<image>", "<video>", "a.png", "v", "\ud800"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["from", "value", "role", "content", "type", "text"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["conversations", "messages", "image", "images", "video"]), JUNK
    )
)
def test_no_record_that_json_can_hold_raises_anything_else(record):
    detail = "expected"
    try:
        made(json.loads(json.dumps(record)))
    except RejectedError as error:
        detail = error.reject.detail
    assert "expected" in detail
    assert len(detail) < 500
