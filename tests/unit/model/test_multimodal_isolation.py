"""What one sample of a row, or one split of a sample, can change in the model's outputs.

Shapes stay the same where outputs are compared bit for bit. Where a sample takes another place, the
matrix products are over other numbers of rows and may round differently: 1e-12 in float64.
"""

import pytest
import torch

from megapack.model.multimodal_flow import mixed, noise_of, times_of
from megapack.multimodal.config import MaskForm
from megapack.records.multimodal_sample import LaidSample, SpanKind
from tests.support.mixture_rows import (
    CONFIG,
    batch_of,
    image,
    laid,
    model_of,
    samples,
    text,
    with_level,
    with_pixels,
    with_text,
)

MODEL = model_of()
CHANGES = {
    "a text (CAUSAL)": (0, lambda one: with_text(one, 2, [13, 14])),
    "an answer (CAUSAL)": (1, lambda one: with_text(one, 2, [25, 26])),
    "a clean image (FULL)": (0, lambda one: with_pixels(one, 0)),
    "a patch image (FULL)": (1, lambda one: with_pixels(one, 0)),
    "a predicted image (NOISE)": (2, lambda one: with_pixels(one, 0)),
    "a noise level (NOISE)": (3, lambda one: with_level(with_level(one, 1, 2.0), 2, 2.0)),
}


@torch.no_grad()
def outputs(chosen: tuple[LaidSample, ...], mask: MaskForm = MaskForm.NESTED):
    """Features of each sample [n, H]."""
    batch = batch_of(chosen, mask)
    noise = noise_of(batch, CONFIG.latent_channels, seed=7).double()
    times = times_of(batch.timesteps.double(), shift=CONFIG.timestep_shift)
    hidden = MODEL.hidden(batch, mixed(MODEL.latents(batch), noise, times))
    return hidden.split(list(batch.sample_lengths))


def items_of(one: LaidSample, features: torch.Tensor) -> list[torch.Tensor]:
    return list(features.split(one.lengths.tolist()))


@pytest.mark.parametrize("mask", MaskForm)
@pytest.mark.parametrize("change", CHANGES)
def test_changing_a_sample_leaves_the_others_as_they_were(change: str, mask: MaskForm) -> None:
    number, changed = CHANGES[change]
    before = samples()
    after = tuple(changed(one) if n == number else one for n, one in enumerate(before))
    for n, (old, new) in enumerate(zip(outputs(before, mask), outputs(after, mask), strict=True)):
        assert torch.equal(old, new) == (n != number)


@pytest.mark.parametrize("mask", MaskForm)
def test_other_neighbours_and_places_leave_a_sample_as_it_was(mask: MaskForm) -> None:
    alone = [outputs((one,), mask)[0] for one in samples()]
    other = laid(9, text(7, 8, 9), image(SpanKind.VIT, 3, 3), text(6, loss=True))
    moved = outputs((other, *reversed(samples())), mask)[1:]
    for expected, found in zip(alone, reversed(moved), strict=True):
        assert torch.allclose(expected, found, rtol=0, atol=1e-12)


def test_losses_of_a_row_are_the_sums_of_its_samples_alone() -> None:
    row = MODEL(batch_of(samples()), seed=3)
    alone = [MODEL(batch_of((one,)), seed=3) for one in samples()]
    for name in ("cross_entropy", "text_weight", "squared_error", "latents"):
        total = sum(getattr(one, name) for one in alone)
        assert torch.allclose(getattr(row, name), total, rtol=1e-12)
    other = MODEL(batch_of(samples()), seed=4)
    assert not torch.allclose(row.squared_error, other.squared_error, rtol=1e-3)


@pytest.mark.parametrize("mask", MaskForm)
def test_a_noised_image_is_seen_by_its_own_split_only(mask: MaskForm) -> None:
    """The chain: clean, patches, text, predicted, clean, text, predicted."""
    chain = samples()[0]
    (before,), (after,) = outputs((chain,), mask), outputs((with_pixels(chain, 2),), mask)
    pairs = zip(items_of(chain, before), items_of(chain, after), strict=True)
    assert [torch.equal(*pair) for pair in pairs] == [True] * 3 + [False] + [True] * 3
    video = samples()[3]
    (before,), (after,) = outputs((video,), mask), outputs((with_pixels(video, 1),), mask)
    pairs = zip(items_of(video, before), items_of(video, after), strict=True)
    assert [torch.equal(*pair) for pair in pairs] == [True, False, False, True]


@pytest.mark.parametrize("mask", MaskForm)
def test_a_full_split_sees_itself_and_is_seen_by_what_follows(mask: MaskForm) -> None:
    """The last latent of the clean image in the middle of the chain, seen from its first token."""
    chain = samples()[0]
    pixels = [picture.copy() for picture in chain.sample.pixels]
    corner = with_pixels(chain, 3)
    corner.sample.pixels[3][:, :4] = pixels[3][:, :4]
    corner.sample.pixels[3][:4] = pixels[3][:4]
    (before,), (after,) = outputs((chain,), mask), outputs((corner,), mask)
    pairs = list(zip(items_of(chain, before), items_of(chain, after), strict=True))
    assert [torch.equal(*pair) for pair in pairs] == [True] * 4 + [False] * 3
    assert not torch.equal(pairs[4][0][0], pairs[4][1][0])


@pytest.mark.parametrize("mask", MaskForm)
def test_a_causal_split_sees_only_the_past(mask: MaskForm) -> None:
    talk = samples()[1]
    (before,), (after,) = outputs((talk,), mask), outputs((with_text(talk, 1, [20, 21, 29]),), mask)
    same = (before == after).all(dim=1).tolist()
    changed = int(talk.starts[1]) + 3
    assert same == [True] * changed + [False] * (len(same) - changed)
