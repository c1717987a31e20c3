"""Losses as sums, accumulation over unlike rows, a few steps that learn, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from megapack.errors import ConfigError, ContractError
from megapack.model.multimodal_config import MixtureConfig, check_batch
from megapack.model.multimodal_flow import NoisyLatents, noise_of, times_of
from megapack.model.multimodal_training import accumulate, evaluate, train_step
from megapack.model.multimodal_vae import CosineAutoencoder, cosine_basis
from megapack.records.multimodal_sample import SpanKind
from tests.support.mixture_rows import CONFIG, batch_of, image, laid, model_of, samples


def gradients(model, batches, seed=0):
    model.zero_grad()
    accumulate(model, batches, seed=seed)
    return [weight.grad.clone() for weight in model.parameters()]


def test_accumulation_over_unlike_rows_is_the_gradient_of_one_row() -> None:
    """Rows with text alone, images alone, and both; the means are over all of them."""
    model = model_of()
    chain, talk, painted, video = samples()
    whole = gradients(model, [batch_of((chain, talk, painted, video))])
    apart = gradients(model, [batch_of((talk,)), batch_of((chain, painted)), batch_of((video,))])
    for one, other in zip(whole, apart, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-13)
    with pytest.raises(ContractError, match="something to predict"):
        accumulate(model, [], seed=0)


@torch.no_grad()
def test_both_losses_against_the_model_written_out() -> None:
    model, batch = model_of(), batch_of(samples())
    losses = model(batch, seed=2)
    clean = model.latents(batch)
    noise = noise_of(batch, CONFIG.latent_channels, seed=2).double()
    sigma = 1 / (1 + torch.exp(-batch.timesteps.double()))
    time = CONFIG.timestep_shift * sigma / (1 + (CONFIG.timestep_shift - 1) * sigma)
    assert torch.allclose(times_of(batch.timesteps.double(), shift=3.0), time)
    assert torch.equal(time > 0, torch.isin(batch.vae_index, batch.mse_index))
    noised = (1 - time[:, None]) * clean + time[:, None] * noise
    noisy = NoisyLatents(latents=noised, times=time)
    hidden = model.hidden(batch, noisy)
    entropy = -model.lm_head(hidden[batch.ce_index]).log_softmax(-1)
    picked = entropy[torch.arange(len(batch.label_ids)), batch.label_ids]
    weighted = (picked * batch.ce_weights).sum() / batch.ce_weights.sum()
    assert losses.mean_cross_entropy() == pytest.approx(float(weighted), rel=1e-6)
    error = (model.velocity_head(hidden[batch.vae_index]) - (noise - clean))[time > 0]
    assert losses.mean_squared_error() == pytest.approx(float(error.square().mean()), rel=1e-9)


def test_a_few_steps_learn_both() -> None:
    model = model_of().float()
    model.initialize(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    chain, talk, painted, video = samples()
    rows = [batch_of((chain, talk)), batch_of((painted, video))]
    before = evaluate(model, rows, seed=99)
    for step in range(10):
        train_step(model, optimizer, rows, seed=step)
    after = evaluate(model, rows, seed=99)
    assert before is not None
    assert after is not None
    assert after.mean_cross_entropy() < before.mean_cross_entropy() / 2
    assert after.mean_squared_error() < before.mean_squared_error() * 0.9
    again = evaluate(model, rows, seed=99)
    assert again is not None
    assert torch.equal(again.squared_error, after.squared_error)


def test_initial_weights_are_a_function_of_the_seed_and_no_global_generator_moves() -> None:
    state = torch.random.get_rng_state()
    one, other = (model_of() for _ in range(2))
    moved = torch.random.get_rng_state()
    torch.random.set_rng_state(state)
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    before = torch.random.get_rng_state()
    one.initialize(seed=3)
    one(batch_of(samples()), seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert moved.shape == before.shape


def test_the_autoencoder_keeps_low_frequencies_and_undoes_itself_when_whole() -> None:
    basis = cosine_basis(4).double()
    assert torch.allclose(basis @ basis.T, torch.eye(16, dtype=torch.float64), atol=1e-6)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 8, 12, generator=generator)
    shapes = torch.tensor([[1, 3], [2, 2]])
    whole = CosineAutoencoder(downsample=4, channels=48)
    first, second = whole.encode(images, shapes).split([3, 4])
    assert torch.allclose(whole.decode(first, height=1, width=3), images[0, :, :4], atol=1e-5)
    assert torch.allclose(whole.decode(second, height=2, width=2), images[1, :, :, :8], atol=1e-5)
    coarse = CosineAutoencoder(downsample=4, channels=3)
    mean = images[0, :, :4, :4].mean(dim=(1, 2))
    assert torch.allclose(coarse.encode(images, shapes)[0], mean, atol=1e-6)
    again = coarse.decode(mean[None], height=1, width=1)
    assert torch.allclose(again, mean[:, None, None].expand(3, 4, 4), atol=1e-6)


def test_rows_beyond_the_model_are_refused() -> None:
    batch = batch_of(samples())
    for change, said in (
        ({"vocab_size": 30}, r"text_ids: expected ids below 30.*vocab_size = 30"),
        ({"vit_max_side": 2}, r"vit_position_ids: expected ids below 4"),
        ({"vae_max_side": 1}, r"vae_position_ids: expected ids below 1"),
        ({"vit_patch_size": 2}, r"vit_tokens: expected 12 numbers a patch.*found 48"),
        ({"vae_downsample": 2}, r"vae_images: expected \[2, 3\] latents.*found images of 8 x 12"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_batch(replace(CONFIG, **change), batch)
    with pytest.raises(ContractError, match="expected text, patches and latents at all"):
        check_batch(CONFIG, replace(batch, text_index=batch.text_index[1:]))
    with pytest.raises(ContractError, match="vae_shapes: expected"):
        check_batch(CONFIG, replace(batch, vae_shapes=batch.vae_shapes[1:]))


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"hidden_size": 18}, "hidden_size: expected a multiple of 2 \\* num_heads = 8"),
        ({"latent_channels": 4}, "latent_channels: expected a multiple of 3"),
        ({"latent_channels": 0}, "latent_channels: expected a multiple of 3"),
        ({"timestep_shift": 0.0}, "timestep_shift: expected more than 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        MixtureConfig(vocab_size=10, **sizes)


def test_noise_belongs_to_the_sample_and_the_step() -> None:
    chain, talk, painted, video = samples()
    one = noise_of(batch_of((chain, talk, painted)), 6, seed=1)
    other = noise_of(batch_of((video, painted)), 6, seed=1)
    assert torch.equal(one[-6:], other[-6:])
    twins = [laid(row, image(SpanKind.VAE, 2, 2, loss=True)) for row in (7, 8)]
    first, second = noise_of(batch_of(tuple(twins)), 6, seed=1).split(4)
    assert not torch.equal(first, second)
    assert not torch.equal(one, noise_of(batch_of((chain, talk, painted)), 6, seed=2))
    assert noise_of(batch_of((talk,)), 6, seed=1).shape == (0, 6)
    many = torch.cat([noise_of(batch_of((chain,)), 6, seed=seed) for seed in range(200)])
    assert abs(float(many.mean())) < 4 / math.sqrt(many.numel())
    assert float(many.std()) == pytest.approx(1, abs=0.03)
    assert np.unique(many[:, 0].numpy()).size == len(many)
