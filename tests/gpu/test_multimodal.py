"""Does flex attention on CUDA, compiled, give the losses and gradients of a mask written out?"""

from dataclasses import replace

import numpy as np
import torch

from megapack.model.multimodal import MixtureModel
from megapack.model.multimodal_mask import ColumnKernel
from megapack.multimodal.config import MaskForm
from tests.support.mixture_rows import CONFIG, batch_of, samples
from tests.support.rows import worst_error

HEADS_OF_16 = replace(CONFIG, hidden_size=32)


def learnt(kernel: ColumnKernel, dtype: torch.dtype, device: str = "cuda") -> dict[str, np.ndarray]:
    batch = batch_of(samples(), MaskForm.FLEX, padding=37).to(device)
    model = MixtureModel(HEADS_OF_16, kernel=kernel)
    model.initialize(seed=0)
    with torch.no_grad():  # it begins at zero, and what is before it would have no gradient
        model.velocity_head.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    model = model.to(device, dtype)
    losses = model(batch, seed=5)
    (losses.cross_entropy + losses.squared_error).backward()
    return {name: weight.grad.double().cpu().numpy() for name, weight in model.named_parameters()}


def test_error_of_flex_attention_is_at_most_4x_that_of_the_mask_written_out() -> None:
    exact = learnt(ColumnKernel.DENSE, torch.float64)
    dense = worst_error(learnt(ColumnKernel.DENSE, torch.float32), exact)
    assert 0 < worst_error(learnt(ColumnKernel.FLEX, torch.float32), exact) <= 4 * dense
