"""Log-probs over vocabulary shards against torch's own log_softmax."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.layout.granularity import ParallelSizes
from megapack.parallel.context import ParallelContext
from megapack.parallel.sampling import Sampling
from megapack.parallel.vocab import VocabShard, target_logprobs

WHOLE = VocabShard(start=0, real=5)


def test_target_logprobs_of_two_tokens_golden() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0, 0.0]])
    got = target_logprobs(logits, torch.tensor([3, 0]), WHOLE)
    assert got.tolist() == pytest.approx([-1.6094379, -0.4326530], abs=1e-6)


@given(
    seed=st.integers(0, 10**6), tokens=st.integers(1, 9), temperature=st.sampled_from([1.0, 0.7])
)
@settings(deadline=None, max_examples=30)
def test_value_and_gradient_equal_log_softmax(seed: int, tokens: int, temperature: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, 7, dtype=torch.float64, generator=draw).mul_(20)
    targets = torch.randint(0, 5, (tokens,), generator=draw)
    weights = torch.randn(tokens, dtype=torch.float64, generator=draw)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    got = target_logprobs(ours, targets, WHOLE, sampling=Sampling(temperature=temperature))
    expected = torch.log_softmax(theirs[:, :5] / temperature, -1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    (got * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)
    assert not ours.grad[:, 5:].any(), "padding columns have no gradient"


def test_logits_are_not_modified() -> None:
    logits = torch.randn(3, 5)
    before = logits.clone()
    target_logprobs(logits, torch.tensor([0, 1, 2]), WHOLE)
    assert torch.equal(logits, before)


def test_chunked_equals_unchunked() -> None:
    logits = torch.randn(11, 5, dtype=torch.float64)
    targets = torch.randint(0, 5, (11,))
    whole = target_logprobs(logits, targets, WHOLE)
    by_four = VocabShard(start=0, real=5, tokens_per_chunk=4)
    assert torch.equal(target_logprobs(logits, targets, by_four), whole)


def test_ignored_label_gives_a_finite_value_and_bf16_is_widened() -> None:
    got = target_logprobs(torch.randn(2, 5).bfloat16(), torch.tensor([-100, 1]), WHOLE)
    assert got.dtype == torch.float32
    assert torch.isfinite(got).all()


@pytest.mark.parametrize(("rank", "real"), [(0, 8), (1, 2), (2, 0)])
def test_shard_counts_real_columns_only(rank: int, real: int) -> None:
    context = ParallelContext.fake(ParallelSizes(tp=3), tp_rank=rank)
    shard = VocabShard.of(context, columns=8, vocab_size=10)
    assert (shard.start, shard.real) == (8 * rank, real)
