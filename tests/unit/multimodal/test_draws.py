import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.multimodal.config import FrameRule, FrameSampling
from megapack.multimodal.draws import DrawPurpose, sample_generator
from megapack.multimodal.frames import frame_indices
from megapack.records.multimodal_sample import SampleRef

REF = SampleRef(group="g", source="s", file="f", row=3)
GOLDEN = [0.795321444100104, 0.5647287937219111]


def drawn(seed=0, epoch=0, ref=REF, purpose=DrawPurpose.CONTENT):
    return sample_generator(seed, epoch, ref, purpose).random(2).tolist()


def test_draws_are_the_same_on_every_machine():
    assert drawn() == GOLDEN


def test_draws_depend_on_everything_that_names_them():
    """M15: seed 0 is a seed; MM3: the epoch is part of it."""
    changed = [
        dataclasses.replace(REF, **change)
        for change in ({"group": "h"}, {"source": "t"}, {"file": "e"}, {"row": 4}, {"reading": 1})
    ]
    all_draws = [drawn(), drawn(seed=1), drawn(epoch=1), drawn(purpose=DrawPurpose.WRITING)]
    all_draws += [drawn(ref=ref) for ref in changed]
    assert len({tuple(draw) for draw in all_draws}) == len(all_draws)
    apart = dataclasses.replace(REF, group="gs", source=""), dataclasses.replace(REF, source="ss")
    assert drawn(ref=apart[0]) != drawn(ref=apart[1])


def test_draws_leave_the_global_generators_alone():
    """M41: the published packer reseeds the generators of the whole process."""
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first = drawn()
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert drawn() == first
    random.setstate(before[0])
    drawn()
    assert random.getstate() == before[0]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 60), st.integers(1, 9), st.integers(0, 9), st.sampled_from(FrameRule), st.data()
)
def test_frames_are_ascending_and_as_many_as_asked(num_frames, least, more, rule, data):
    sampling = FrameSampling(min_frames=least, max_frames=least + more, rule=rule)
    seed = data.draw(st.integers(0, 99))
    frames = frame_indices(num_frames, sampling, np.random.default_rng(seed))
    assert frames == sorted(set(frames))
    assert all(0 <= frame < num_frames for frame in frames)
    assert min(num_frames, least) <= len(frames) <= min(num_frames, least + more)


def test_every_frame_can_be_drawn_and_every_number_of_frames():
    """Published: the last frame of each part is never drawn."""
    sampling = FrameSampling(min_frames=2, max_frames=4)
    generator = np.random.default_rng(0)
    draws = [frame_indices(7, sampling, generator) for _ in range(400)]
    assert {frame for frames in draws for frame in frames} == set(range(7))
    assert {len(frames) for frames in draws} == {2, 3, 4}


@pytest.mark.parametrize(("num_frames", "expected"), [(3, [0, 1, 2]), (4, [0, 1, 2, 3])])
def test_a_short_video_gives_all_its_frames(num_frames, expected):
    """Published frame lists padded with copies of the last frame; a video has what it has."""
    sampling = FrameSampling(min_frames=4, max_frames=4)
    assert frame_indices(num_frames, sampling, np.random.default_rng(0)) == expected


def test_one_frame_of_each_part():
    sampling = FrameSampling(min_frames=3, max_frames=3)
    for seed in range(30):
        first, second, third = frame_indices(10, sampling, np.random.default_rng(seed))
        assert first < 3 <= second < 6 <= third
