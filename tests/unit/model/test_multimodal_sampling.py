"""Answers and images of several prompts in one row are those of each prompt alone."""

import pytest
import torch

from megapack.errors import ContractError
from megapack.model.multimodal_flow import NoisyLatents, noise_of
from megapack.model.multimodal_sampling import Euler, answers, paint
from megapack.records.multimodal_sample import SpanKind
from tests.support.mixture_rows import CONFIG, RULES, batch_of, image, laid, model_of, text

MODEL = model_of()
NOTHING = NoisyLatents(
    latents=torch.zeros(0, 6, dtype=torch.float64), times=torch.zeros(0, dtype=torch.float64)
)


@torch.no_grad()
def test_an_answer_is_the_likeliest_token_by_token() -> None:
    prompts = [
        laid(1, image(SpanKind.VIT, 2, 2), text(10, 11)).sample,
        laid(2, text(12)).sample,
    ]
    found = answers(MODEL, prompts, RULES, max_tokens=3)
    assert [answers(MODEL, [one], RULES, max_tokens=3)[0] for one in prompts] == found
    ids: list[int] = []
    for _ in range(3):
        batch = batch_of((laid(2, text(12), text(*ids)),))
        hidden = MODEL.hidden(batch, NOTHING)
        likeliest = int(MODEL.lm_head(hidden[batch.length - 2]).argmax())
        if likeliest == RULES.special.eos:
            break
        ids.append(likeliest)
    assert found[1] == ids


@torch.no_grad()
def test_one_euler_step_goes_from_noise_along_the_predicted_way() -> None:
    """With a clean image before it, which stays as it is; guidance drops the text."""
    clean, painted = image(SpanKind.VAE, 1, 2), image(SpanKind.VAE, 2, 2, loss=True)
    prompts = [laid(3, text(7), clean, painted), laid(4, text(8, 9), painted)]
    found = paint(MODEL, [one.sample for one in prompts], RULES, Euler(steps=1, seed=5))
    assert [one.shape for one in found] == [(3, 8, 8)] * 2
    batch = batch_of((prompts[0],))
    noise = noise_of(batch, CONFIG.latent_channels, seed=5).double()
    latents = torch.cat((MODEL.latents(batch)[:2], noise[2:]))
    times = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    hidden = MODEL.hidden(batch, NoisyLatents(latents=latents, times=times))
    end = latents[2:] - MODEL.velocity_head(hidden[batch.mse_index])
    expected = (MODEL.vae.decode(end, height=2, width=2) * 0.5 + 0.5).clamp(0, 1)
    assert torch.allclose(found[0], expected, atol=1e-12)
    guided = paint(
        MODEL, [one.sample for one in prompts], RULES, Euler(steps=1, seed=5, guidance=3.0)
    )
    assert not torch.allclose(guided[0], found[0])
    with pytest.raises(ContractError, match="end in a predicted VAE image"):
        paint(MODEL, [laid(5, text(1)).sample], RULES, Euler())
