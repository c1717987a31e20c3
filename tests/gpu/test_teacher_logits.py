"""A teacher's logits on the device: float32 from narrow values, whichever way they are made."""

import pytest


@pytest.mark.parametrize("weight_dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("hidden_dtype", ["bfloat16", "float16"])
def test_logits_are_as_good_as_the_stored_values(hidden_dtype: str, weight_dtype: str) -> None:
    import torch

    from megapack.parallel.teacher_columns import project

    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(40, 64, generator=draw).to(getattr(torch, hidden_dtype))
    weight = torch.randn(33, 64, generator=draw).to(getattr(torch, weight_dtype))
    got = project(hidden.cuda(), weight.cuda(), torch.float32)
    assert got.dtype == torch.float32
    assert float((got.cpu() - hidden.double() @ weight.double().T).abs().max()) < 2e-5
