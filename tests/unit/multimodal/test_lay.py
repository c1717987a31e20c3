import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ContractError
from megapack.multimodal.config import DropoutConfig
from megapack.multimodal.lay import draw_writing, full_size, lay_out
from megapack.records.multimodal_sample import SampleSize
from tests.support.multimodal_samples import RULES, sample_of, samples, text, vae, vit

NEVER = DropoutConfig(text=0, vit=0, vae=0)
ALWAYS = DropoutConfig(text=1, vit=1, vae=1)


def generator(seed=0):
    return np.random.default_rng(seed)


def laid_of(*items, dropout=NEVER, seed=0):
    kept, timesteps = draw_writing(items, dropout, generator(seed))
    return lay_out(sample_of(*items), kept=kept, timesteps=timesteps, rules=RULES)


def test_a_size_counts_what_is_written():
    items = (text(1, 2, 3), text(), vit(2, 3), vae(2, 2), vae(1, 4, loss=True))
    assert full_size(items, RULES) == SampleSize(
        tokens=5 + 2 + 8 + 6 + 6, vit_tokens=6, vae_tokens=8, images=3
    )
    assert laid_of(*items).size == full_size(items, RULES)


def test_a_size_after_dropout_counts_what_is_left():
    """C14: the packer's size is that of what is written, not an estimate made before dropout."""
    laid = laid_of(text(1, 2, droppable=True), vit(2, 3, droppable=True), text(3), dropout=ALWAYS)
    assert laid.kept.tolist() == [False, False, True]
    assert laid.lengths.tolist() == [0, 0, 3]
    assert laid.size == SampleSize(tokens=3)


@settings(max_examples=25, deadline=None)
@given(samples(), st.integers(0, 99))
def test_a_size_is_the_sum_of_the_written_lengths(sample, seed):
    half = DropoutConfig(text=0.5, vit=0.5, vae=0.5)
    kept, timesteps = draw_writing(sample.items, half, generator(seed))
    laid = lay_out(sample, kept=kept, timesteps=timesteps, rules=RULES)
    assert laid.size.tokens == laid.lengths.sum()
    assert laid.starts.tolist() == [int(laid.lengths[:i].sum()) for i in range(len(kept))]
    assert all(kept[i] or item.droppable for i, item in enumerate(sample.items))


def test_positions_after_images():
    laid = laid_of(vit(), vae(), vae(loss=True), vae(loss=True, position_step=7), text(1), text(2))
    assert laid.positions.tolist() == [0, 1, 2, 2, 9, 12]


def test_a_dropped_image_moves_positions_on_and_dropped_text_does_not():
    items = (
        text(1, 2, droppable=True),
        vit(droppable=True),
        vae(droppable=True, position_step=5),
        text(3),
    )
    assert laid_of(*items, dropout=ALWAYS).positions.tolist() == [0, 0, 1, 6]
    assert laid_of(*items).positions.tolist() == [0, 4, 5, 10]


def test_frames_of_a_video_share_noise_and_fate():
    """Published: each frame of a conditioning video is dropped by itself, breaking its split."""
    clean = [vae(droppable=True, joins=i > 0, position_step=2) for i in range(4)]
    noised = [vae(loss=True, joins=i > 0) for i in range(3)]
    half = DropoutConfig(text=0, vit=0, vae=0.5)
    fates = set()
    for seed in range(20):
        kept, timesteps = draw_writing((*clean, *noised), half, generator(seed))
        assert len(set(kept[:4].tolist())) == 1
        assert len(set(timesteps[4:].tolist())) == 1
        assert np.isneginf(timesteps[:4]).all()
        fates.add(bool(kept[0]))
    assert fates == {True, False}


def test_what_one_split_draws_does_not_depend_on_the_others():
    half = DropoutConfig(text=0.5, vit=0.5, vae=0.5)
    one = draw_writing((text(1), vae(loss=True)), half, generator(1))
    other = draw_writing((vit(droppable=True), vae(loss=True)), half, generator(1))
    assert one[1][1] == other[1][1]


def test_dropout_takes_its_share_of_each_kind():
    dropout = DropoutConfig(text=0.1, vit=0.4, vae=0.8)
    items = [make(droppable=True) for make in (text, vit, vae) for _ in range(4000)]
    kept, _ = draw_writing(items, dropout, generator())
    shares = 1 - kept.reshape(3, 4000).mean(axis=1)
    assert shares == pytest.approx([0.1, 0.4, 0.8], abs=0.03)


def test_noise_levels_are_standard_normal_numbers():
    _, timesteps = draw_writing([vae(loss=True)] * 4000, NEVER, generator())
    assert timesteps.dtype == np.float32
    assert (timesteps.mean(), timesteps.std()) == pytest.approx((0, 1), abs=0.05)


@pytest.mark.parametrize(
    "items",
    [(vae(joins=True),), (text(1), vae(joins=True)), (vae(), vae(loss=True, joins=True))],
    ids=["first", "after text", "other loss"],
)
def test_a_later_frame_needs_a_split_like_it(items):
    with pytest.raises(ContractError, match="expected a later frame to follow an image"):
        laid_of(*items)


def test_lay_out_refuses_draws_that_do_not_fit():
    sample = sample_of(vae(loss=True), vae(loss=True, joins=True))
    yes = np.ones(2, dtype=np.bool_)
    level = np.zeros(2, dtype=np.float32)
    with pytest.raises(ContractError, match="kept or dropped as a whole"):
        lay_out(sample, kept=np.array([True, False]), timesteps=level, rules=RULES)
    with pytest.raises(ContractError, match="at one noise level"):
        lay_out(sample, kept=yes, timesteps=np.array([0, 1], dtype=np.float32), rules=RULES)
    with pytest.raises(ContractError, match="a noise level for predicted images"):
        lay_out(sample, kept=yes, timesteps=level - np.inf, rules=RULES)
    with pytest.raises(ContractError, match="for 2 items, found"):
        lay_out(sample, kept=yes[:1], timesteps=level, rules=RULES)


def test_an_image_with_broken_patches_is_refused():
    odd = vit()
    object.__setattr__(odd, "height", 3)
    with pytest.raises(ContractError, match="multiples of 2, found vit, 2 by 3 pixels"):
        full_size([odd], RULES)
