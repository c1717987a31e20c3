"""A row as tensors, and under the published names."""

import numpy as np
import pytest
import torch

from megapack.batch.multimodal_tensors import bagel_fields, to_batch
from megapack.errors import ConfigError
from megapack.multimodal.assemble import assemble
from megapack.multimodal.config import MaskForm
from megapack.multimodal.lay import lay_out
from tests.support.multimodal_samples import RULES, sample_of, text, vae, vit


def _laid(*items, row=0, dropped=()):
    kept = np.array([number not in dropped for number in range(len(items))])
    predicted = [item.kind == "vae" and item.loss for item in items]
    timesteps = np.where(predicted, 0.5, -np.inf).astype(np.float32)
    return lay_out(sample_of(*items, row=row), kept=kept, timesteps=timesteps, rules=RULES)


@pytest.fixture(scope="module")
def row():
    first = _laid(text(5, 6, droppable=True), vit(2, 1), text(7, loss=True), row=1)
    second = _laid(text(8), vae(2, 2), vae(1, 3, loss=True), row=2)
    return assemble([first, second], RULES)


def test_tensors_hold_what_the_row_holds_and_indexes_are_int64(row):
    batch = to_batch(row, mask=MaskForm.NESTED, padded_length=row.length)
    for name in ("text_ids", "ce_index", "vit_lengths", "vae_shapes", "mse_index", "position_ids"):
        tensor = getattr(batch, name)
        assert tensor.dtype == torch.int64
        assert tensor.tolist() == getattr(row, name).tolist()
    for name in ("vit_tokens", "vae_images", "timesteps", "ce_weights"):
        assert torch.equal(getattr(batch, name), torch.from_numpy(getattr(row, name)))
    assert batch.samples == row.samples
    assert batch.attention_modes == ("causal", "full", "causal", "causal", "full", "noise")


def test_nested_masks_and_columns_say_the_same(row):
    nested = to_batch(row, mask=MaskForm.NESTED, padded_length=row.length)
    flex = to_batch(row, mask=MaskForm.FLEX, padded_length=row.length + 3)
    assert nested.mask_columns is None
    assert flex.masks == ()
    blocks = torch.block_diag(*(mask.int() for mask in nested.masks)).bool()
    sample, full, noise = flex.mask_columns[:, : row.length]
    causal = torch.ones(row.length, row.length).tril().bool()
    together = (full[:, None] == full[None]) & (full[:, None] >= 0)
    hidden = (noise[None] >= 0) & (noise[:, None] != noise[None])
    same = sample[:, None] == sample[None]
    assert torch.equal(blocks, (causal | together) & ~hidden & same)


def test_a_row_longer_than_its_padding_is_refused(row):
    with pytest.raises(ConfigError, match=f"expected at least the {row.length} .*, found 3"):
        to_batch(row, mask=MaskForm.FLEX, padded_length=3)


def test_a_form_of_masks_that_there_is_not_is_refused(row):
    with pytest.raises(ConfigError, match="mask: expected 'nested' or 'flex', found 'dense'"):
        to_batch(row, mask="dense", padded_length=row.length)


def test_published_names_of_a_row_with_masks(row):
    batch = to_batch(row, mask=MaskForm.NESTED, padded_length=row.length)
    fields = bagel_fields(batch)
    assert set(fields) == {
        *("sequence_length", "sample_lens", "packed_text_ids", "packed_text_indexes"),
        *("packed_position_ids", "nested_attention_masks", "batch_data_indexes"),
        *("padded_images", "patchified_vae_latent_shapes", "packed_latent_position_ids"),
        *("packed_vae_token_indexes", "packed_timesteps", "mse_loss_indexes"),
        *("packed_vit_tokens", "packed_vit_position_ids", "packed_vit_token_indexes"),
        *("vit_token_seqlens", "packed_label_ids", "ce_loss_indexes", "ce_loss_weights"),
    }
    assert fields["patchified_vae_latent_shapes"] == [(2, 2), (1, 3)]
    assert fields["sample_lens"] == [11, 14]
    assert fields["batch_data_indexes"][1] == {
        "dataset_name": "g",
        "data_indexes": ["main", "a.parquet", 2],
        "reading": 0,
    }
    for additive, mask in zip(fields["nested_attention_masks"], batch.masks, strict=True):
        assert torch.equal(additive == 0, mask)
        assert torch.equal(additive == float("-inf"), ~mask)


@pytest.mark.parametrize("padding", [0, 5])
def test_published_splits_end_with_the_padding_if_there_is_any(row, padding):
    """Published: a split of length 0 when the row is full."""
    batch = to_batch(row, mask=MaskForm.FLEX, padded_length=row.length + padding)
    fields = bagel_fields(batch)
    assert "nested_attention_masks" not in fields
    more = [padding] if padding else []
    assert fields["sample_lens"] == [11, 14, *more]
    assert fields["split_lens"] == [4, 4, 3, 3, 6, 5, *more]
    assert fields["attn_modes"] == [*batch.attention_modes, *(["causal"] if padding else [])]


def test_fields_of_kinds_that_a_row_has_none_of_are_left_out_as_published():
    plain = assemble([_laid(text(1, 2))], RULES)
    fields = bagel_fields(to_batch(plain, mask=MaskForm.NESTED, padded_length=plain.length))
    assert not {"padded_images", "packed_vit_tokens", "packed_label_ids"} & set(fields)


def test_a_batch_moves_as_a_whole(row):
    batch = to_batch(row, mask=MaskForm.NESTED, padded_length=row.length).to("meta")
    assert {batch.text_ids.device.type, batch.masks[0].device.type} == {"meta"}
