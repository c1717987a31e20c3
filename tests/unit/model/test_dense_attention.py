"""Attention of a dense batch against softmax written out, causal and with any other mask."""

import pytest
import torch

from megapack.batch.dense import ltor_masks_and_position_ids
from megapack.errors import ContractError
from megapack.model.dense_attention import dense_attention

S, B, HEADS, GROUPS, SIZE = 9, 2, 4, 2, 8


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(S, B, heads, SIZE, dtype=torch.float64, generator=generator)
        for heads in (HEADS, GROUPS, GROUPS)
    )


def written_out(q, k, v, hidden, scale) -> torch.Tensor:
    out = torch.zeros(S, B, HEADS, SIZE, dtype=torch.float64)
    for b in range(B):
        for h in range(HEADS):
            group = h // (HEADS // GROUPS)
            scores = q[:, b, h] @ k[:, b, group].T * scale
            scores = scores.masked_fill(hidden[min(b, len(hidden) - 1), 0], -torch.inf)
            out[:, b, h] = scores.softmax(-1) @ v[:, b, group]
    return out.flatten(2)


@pytest.mark.parametrize("lengths", [[[9], [9]], [[4, 5], [2, 3, 4]], [[4, 2], [9]]])
def test_masks_of_one_and_of_several_documents_a_row(lengths: list[list[int]]) -> None:
    q, k, v = drawn()
    mask = ltor_masks_and_position_ids(lengths, S).attention_mask
    for _ in range(2):
        found = dense_attention(q, k, v, mask, scale=0.3)
        assert torch.allclose(found, written_out(q, k, v, mask, 0.3), rtol=1e-12, atol=1e-13)


def test_causal_mask_that_rows_share_and_one_hidden_place_more() -> None:
    q, k, v = drawn()
    shared = torch.ones(S, S, dtype=torch.bool).triu(1).expand(B, 1, S, S)
    found = dense_attention(q, k, v, shared, scale=1.0)
    assert torch.allclose(found, written_out(q, k, v, shared, 1.0), rtol=1e-12, atol=1e-13)
    other = shared.clone()
    other[1, 0, 5, 2] = True
    changed = dense_attention(q, k, v, other, scale=1.0)
    assert torch.allclose(changed, written_out(q, k, v, other, 1.0), rtol=1e-12, atol=1e-13)
    assert not torch.allclose(changed[5, 1], found[5, 1])


def test_mask_of_another_width_is_refused() -> None:
    with pytest.raises(ContractError, match=r"a mask \[B, 1, 9, 9\], found \(2, 1, 8, 8\)"):
        dense_attention(*drawn(), torch.zeros(2, 1, 8, 8, dtype=torch.bool), scale=1.0)
