import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ContractError
from megapack.multimodal.assemble import assemble
from megapack.multimodal.attention import mask_columns, mask_from_columns, nested_masks
from megapack.multimodal.config import DropoutConfig
from megapack.multimodal.lay import draw_writing, lay_out
from tests.support.multimodal_samples import RULES, sample_of, samples, text, vae, vit
from tests.support.plain_bagel_rows import plain_mask, plain_row


def laid_of(sample, seed=0, share=0.0):
    dropout = DropoutConfig(text=share, vit=share, vae=share)
    kept, timesteps = draw_writing(sample.items, dropout, np.random.default_rng(seed))
    return lay_out(sample, kept=kept, timesteps=timesteps, rules=RULES)


@settings(max_examples=20, deadline=None)
@given(st.lists(samples(), min_size=1, max_size=3), st.integers(0, 9), st.integers(0, 3))
def test_masks_agree_with_the_rule_written_out(given_samples, seed, padding):
    laid = [laid_of(sample, seed + i, 0.3) for i, sample in enumerate(given_samples)]
    laid = [one for one in laid if one.size.tokens]
    if not laid:
        return
    row = assemble(laid, RULES)
    plain = plain_mask(plain_row([(one.sample, one.kept, one.timesteps) for one in laid], RULES))
    columns = mask_columns(row, row.length + padding)
    whole = mask_from_columns(columns)
    np.testing.assert_array_equal(whole[: row.length, : row.length], plain)
    blocks = np.zeros((row.length, row.length), dtype=np.bool_)
    start = 0
    for mask in nested_masks(row):
        blocks[start : start + len(mask), start : start + len(mask)] = mask
        start += len(mask)
    np.testing.assert_array_equal(blocks, plain)
    assert not whole[: row.length, row.length :].any()
    assert not whole[row.length :, : row.length].any()
    np.testing.assert_array_equal(
        whole[row.length :, row.length :], np.tri(padding, dtype=np.bool_)
    )
    assert whole.diagonal().all()


def test_a_mask_of_all_modes():
    sample = sample_of(text(), vae(loss=True), vit(), text())
    (mask,) = nested_masks(assemble([laid_of(sample)], RULES))
    see = ["".join("x" if seen else "." for seen in line) for line in mask]
    assert see == [
        "x.........",
        "xx........",
        "xxxxx.....",
        "xxxxx.....",
        "xxxxx.....",
        "xx...xxx..",
        "xx...xxx..",
        "xx...xxx..",
        "xx...xxxx.",
        "xx...xxxxx",
    ]


def test_later_items_do_not_see_the_noised_frames_of_a_predicted_video():
    """Published: a predicted split of several frames is `full`, and later text sees its noise."""
    frames = [vae(loss=True, joins=number > 0, position_step=1) for number in range(3)]
    row = assemble([laid_of(sample_of(text(), *frames, text()))], RULES)
    (mask,) = nested_masks(row)
    assert row.split_lengths.tolist() == [2, 9, 2]
    assert mask[2:11, 2:11].all()
    assert not mask[11:, 2:11].any()


def test_neighbouring_images_of_two_samples_do_not_see_each_other():
    row = assemble([laid_of(sample_of(vit(2, 2))), laid_of(sample_of(vit(2, 2), row=1))], RULES)
    whole = mask_from_columns(mask_columns(row, row.length))
    assert whole[:6, :6].all()
    assert not whole[:6, 6:].any()
    assert not whole[6:, :6].any()


def test_columns_do_not_fit_a_shorter_length():
    row = assemble([laid_of(sample_of(text(1, 2)))], RULES)
    with pytest.raises(ContractError, match="at least 4, found 3"):
        mask_columns(row, 3)
