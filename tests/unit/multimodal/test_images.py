import numpy as np
import pytest
import torch

from megapack.multimodal.images import padded_images, vit_patches

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)


def image(high, wide, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (high, wide, 3), dtype=np.uint8)


def normalised(pixels, mean, std):
    """As torchvision's ToTensor and Normalize do it: float32 [3, h, w]."""
    scaled = torch.from_numpy(pixels.copy()).permute(2, 0, 1).to(torch.float32).div(255)
    means, stds = (
        torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (mean, std)
    )
    return scaled.sub(means).div(stds)


@pytest.mark.parametrize(("mean", "std"), [(HALF, HALF), (MEAN, STD)])
def test_patches_are_those_of_torch_bit_by_bit(mean, std):
    images = [image(28, 42), image(14, 14, seed=1)]
    expected = [
        normalised(pixels, mean, std)
        .reshape(3, pixels.shape[0] // 14, 14, pixels.shape[1] // 14, 14)
        .permute(1, 3, 2, 4, 0)
        .reshape(-1, 588)
        for pixels in images
    ]
    found = vit_patches(images, 14, mean=mean, std=std)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, torch.cat(expected).numpy())


@pytest.mark.parametrize(("mean", "std"), [(HALF, HALF), (MEAN, STD)])
def test_padded_images_are_those_of_torch_bit_by_bit(mean, std):
    images = [image(6, 9), image(9, 3, seed=1)]
    found = padded_images(images, mean=mean, std=std)
    assert found.shape == (2, 3, 9, 9)
    for padded, pixels in zip(found, images, strict=True):
        high, wide, _ = pixels.shape
        np.testing.assert_array_equal(padded[:, :high, :wide], normalised(pixels, mean, std))
        assert not padded[:, high:].any()
        assert not padded[:, :, wide:].any()


def test_rows_without_images_have_empty_arrays():
    assert vit_patches([], 14, mean=HALF, std=HALF).shape == (0, 588)
    assert padded_images([], mean=HALF, std=HALF).shape == (0, 3, 0, 0)
