"""Divergence of two distributions under one LM head, against dense float64."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megapack.parallel.vocab_match import Pair, match
from megapack.parallel.vocab_shard import VocabShard

TOKENS, HIDDEN, REAL, COLUMNS = 7, 5, 11, 16
SHARD = VocabShard(start=0, real=REAL, tokens_per_chunk=3)


def drawn(dtype: torch.dtype = torch.float64) -> Pair:
    draw = torch.Generator().manual_seed(5)
    guess, truth = (
        torch.randn(TOKENS, HIDDEN, dtype=torch.float64, generator=draw) * 2 for _ in range(2)
    )
    weight = torch.randn(COLUMNS, HIDDEN, dtype=torch.float64, generator=draw)
    # One position where they agree.
    truth[2] = guess[2] * 1.01
    return Pair(
        guess=guess.to(dtype).requires_grad_(), truth=truth.to(dtype), weight=weight.to(dtype)
    )


def dense(pair: Pair) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """KL, agreement, and gradient of the KL weighted 1, 2, 3, ..., in float64."""
    guess = pair.guess.detach().double().requires_grad_()
    weight = pair.weight.double()[:REAL]
    q, p = ((one @ weight.T).log_softmax(-1) for one in (guess, pair.truth.double()))
    kl = (p.exp() * (p - q)).sum(-1)
    (gradient,) = torch.autograd.grad((kl * torch.arange(1.0, TOKENS + 1)).sum(), guess)
    return kl.detach(), q.argmax(-1) == p.argmax(-1), gradient


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_divergence_agreement_and_gradient_are_those_of_dense_float64(
    dtype: torch.dtype, tolerance: float
) -> None:
    pair = drawn(dtype)
    kl, agrees = match(pair, SHARD)
    (kl * torch.arange(1.0, TOKENS + 1, dtype=dtype)).sum().backward()
    expected = dense(pair)
    assert kl.dtype == dtype
    assert agrees.tolist() == expected[1].tolist()
    assert 0 < agrees.sum() < TOKENS
    for got, value in ((kl.detach(), expected[0]), (pair.guess.grad, expected[2])):
        torch.testing.assert_close(got.double(), value, rtol=tolerance, atol=tolerance)
    assert pair.truth.grad is None
    assert pair.weight.grad is None


def test_guess_that_is_right_has_no_divergence_and_no_gradient() -> None:
    pair = drawn()
    same = Pair(guess=pair.guess, truth=pair.guess.detach().clone(), weight=pair.weight)
    kl, agrees = match(same, SHARD)
    kl.sum().backward()
    assert kl.abs().max() < 1e-14
    assert agrees.all()
    assert pair.guess.grad.abs().max() < 1e-14


def test_equal_logits_agree_on_the_lower_id() -> None:
    weight = torch.eye(4, dtype=torch.float64)
    guess = torch.tensor([[0.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    truth = torch.tensor([[0.0, 1.0, 0.0, 1.0]], dtype=torch.float64)
    pair = Pair(guess=guess, truth=truth, weight=weight)
    assert match(pair, VocabShard(start=0, real=4))[1].tolist() == [True]
    other = Pair(guess=guess, truth=truth.flip(-1), weight=weight)
    assert match(other, VocabShard(start=0, real=4))[1].tolist() == [False]


def test_nothing_as_large_as_the_logits_of_all_tokens_is_made() -> None:
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            made = func(*args, **(kwargs or {}))
            sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
            largest = max([largest, *sizes])
            return made

    draw = torch.Generator().manual_seed(5)
    guess, truth = (torch.randn(64, 4, generator=draw) for _ in range(2))
    pair = Pair(guess=guess.requires_grad_(), truth=truth, weight=torch.randn(512, 4))
    with Sizes():
        match(pair, VocabShard(start=0, real=500, tokens_per_chunk=8))[0].sum().backward()
    assert largest <= 8 * 512
