"""Both forms of the mask: one rule, the same losses and gradients, padding that changes nothing."""

from dataclasses import replace

import pytest
import torch

from megapack.errors import ContractError
from megapack.model.multimodal_mask import ColumnKernel, attention_of, dense_mask
from megapack.multimodal.attention import mask_from_columns
from megapack.multimodal.config import MaskForm
from tests.support.mixture_rows import batch_of, model_of, samples

PADDING = 37


def test_the_rule_of_the_columns_gives_the_nested_masks_and_padding_apart() -> None:
    nested = batch_of(samples())
    columns = batch_of(samples(), MaskForm.FLEX, padding=PADDING).mask_columns
    assert columns is not None
    mask = dense_mask(columns)
    assert torch.equal(mask[: nested.length, : nested.length], torch.block_diag(*nested.masks) > 0)
    assert not mask[: nested.length, nested.length :].any()
    assert not mask[nested.length :, : nested.length].any()
    assert mask.any(dim=1).all()
    assert torch.equal(mask, torch.from_numpy(mask_from_columns(columns.numpy())))


def test_losses_and_gradients_of_both_forms_are_equal() -> None:
    found = []
    for mask, padding in ((MaskForm.NESTED, 0), (MaskForm.FLEX, PADDING)):
        model = model_of()
        losses = model(batch_of(samples(), mask, padding=padding), seed=5)
        (losses.cross_entropy + losses.squared_error).backward()
        found.append((losses, [weight.grad for weight in model.parameters()]))
    (nested, of_nested), (flex, of_flex) = found
    assert torch.allclose(nested.cross_entropy, flex.cross_entropy, rtol=1e-12)
    assert torch.allclose(nested.squared_error, flex.squared_error, rtol=1e-12)
    for one, other in zip(of_nested, of_flex, strict=True):
        assert one.abs().sum() > 0
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_itself_gives_the_same_losses() -> None:
    """Its forward alone: docs/upstream/flex_cpu_backward.md says why, and tells when that ends."""
    nested, flex = batch_of(samples()), batch_of(samples(), MaskForm.FLEX, padding=PADDING)
    model = model_of(kernel=ColumnKernel.FLEX)
    with torch.no_grad():
        expected, found = model(nested, seed=5), model(flex, seed=5)
    assert torch.allclose(expected.cross_entropy, found.cross_entropy, rtol=1e-12)
    assert torch.allclose(expected.squared_error, found.squared_error, rtol=1e-12)


def test_masks_that_are_not_those_of_the_samples_are_refused() -> None:
    batch = batch_of(samples())
    with pytest.raises(ContractError, match="one mask for each sample of lengths"):
        attention_of(replace(batch, masks=batch.masks[1:]))
    with pytest.raises(ContractError, match="expected mask columns or one mask"):
        attention_of(replace(batch, masks=()))
