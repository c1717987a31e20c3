import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ContractError
from megapack.multimodal.assemble import assemble
from megapack.multimodal.config import DropoutConfig
from megapack.multimodal.lay import draw_writing, lay_out
from megapack.records.multimodal_sample import AttentionMode
from tests.support.multimodal_samples import (
    RULES,
    sample_of,
    samples,
    text,
    vae,
    vit,
    writing_rules,
)
from tests.support.plain_bagel_rows import plain_row

HALF = DropoutConfig(text=0.5, vit=0.5, vae=0.5)


def laid_of(sample, rules=RULES, *, dropout=HALF, seed=0):
    kept, timesteps = draw_writing(sample.items, dropout, np.random.default_rng(seed))
    return lay_out(sample, kept=kept, timesteps=timesteps, rules=rules)


def assert_equal(row, plain):
    assert row.length == plain["length"]
    assert [mode.value for mode in row.attention_modes] == plain["attention_modes"]
    assert [placed.start for placed in row.samples] == plain["starts"]
    assert [placed.length for placed in row.samples] == plain["sample_lengths"]
    assert [list(placed.dropped) for placed in row.samples] == plain["dropped"]
    others = {"length", "attention_modes", "samples"}
    for field in dataclasses.fields(row):
        if field.name in others:
            continue
        found, expected = getattr(row, field.name), np.array(plain[field.name])
        assert found.dtype == (np.float32 if found.dtype.kind == "f" else np.int32), field.name
        assert found.size == expected.size, field.name
        if expected.size:
            assert found.shape == expected.shape, field.name
        if found.dtype.kind == "f":
            np.testing.assert_allclose(
                found.ravel(), expected.ravel(), rtol=3e-6, atol=3e-7, err_msg=field.name
            )
        else:
            np.testing.assert_array_equal(found.ravel(), expected.ravel(), err_msg=field.name)


@settings(max_examples=30, deadline=None)
@given(st.lists(samples(), min_size=1, max_size=3), writing_rules(), st.integers(0, 99))
def test_assemble_equals_the_row_written_token_by_token(given_samples, rules, seed):
    laid = [laid_of(sample, rules, seed=seed + i) for i, sample in enumerate(given_samples)]
    laid = [one for one in laid if one.size.tokens]
    if not laid:
        return
    row = assemble(laid, rules)
    assert_equal(row, plain_row([(one.sample, one.kept, one.timesteps) for one in laid], rules))


def test_assemble_a_row_of_ten_tokens():
    sample = sample_of(text(7, 8, loss=True, end_label=5), vae(1, 2, loss=True), vit())
    row = assemble([laid_of(sample, dropout=DropoutConfig(text=0, vit=0, vae=0))], RULES)
    assert row.length == 4 + 4 + 3
    assert row.text_ids.tolist() == [1000, 7, 8, 1001, 1002, 1003, 1002, 1003]
    assert row.text_index.tolist() == [0, 1, 2, 3, 4, 7, 8, 10]
    assert row.label_ids.tolist() == [7, 8, 1001, 5]
    assert row.ce_index.tolist() == [0, 1, 2, 3]
    assert row.ce_weights.tolist() == pytest.approx([3**-0.5] * 3 + [1.0])
    assert row.position_ids.tolist() == [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4]
    assert row.split_lengths.tolist() == [4, 4, 3]
    assert row.attention_modes == (AttentionMode.CAUSAL, AttentionMode.NOISE, AttentionMode.FULL)
    assert row.mse_index.tolist() == row.vae_index.tolist() == [5, 6]
    assert row.vit_index.tolist() == [9]
    assert row.vae_shapes.tolist() == [[1, 2]]


def test_assemble_refuses_what_cannot_be_a_row():
    with pytest.raises(ContractError, match="at least one sample"):
        assemble([], RULES)
    bare = dataclasses.replace(sample_of(vit()), pixels=())
    with pytest.raises(ContractError, match="Decode the pixels first"):
        assemble([laid_of(bare)], RULES)
    everything = DropoutConfig(text=1, vit=1, vae=1)
    gone = laid_of(sample_of(text(1, droppable=True)), dropout=everything)
    with pytest.raises(ContractError, match="something is written"):
        assemble([gone], RULES)


def test_a_sample_is_written_the_same_whatever_stands_before_it():
    one = laid_of(sample_of(text(1, 2), vae(2, 1, loss=True), row=3))
    other = laid_of(sample_of(text(3), vit(2, 2), text(4, loss=True), row=4))
    alone, both = assemble([one], RULES), assemble([other, one], RULES)
    shift = other.size.tokens
    assert both.position_ids[shift:].tolist() == alone.position_ids.tolist()
    assert (both.mse_index - shift).tolist() == alone.mse_index.tolist()
    assert both.timesteps.tolist() == alone.timesteps.tolist()
