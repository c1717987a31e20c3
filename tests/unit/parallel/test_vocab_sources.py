"""Filters, top-k and the chunked LM head in one process, against brute force in float64.

Over vocabulary shards: tests/distributed/test_vocab_shards.py.
"""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ConfigError
from megapack.parallel.lm_head import LmHead, StoredLogits
from megapack.parallel.sampling import Sampling
from megapack.parallel.vocab import VocabShard, source_logprobs, target_logprobs
from megapack.parallel.vocab_topk import topk_by_id, topk_of
from tests.support.largest_tensor import LargestTensor

REAL, COLUMNS = 11, 16
TWO_AT_ONCE = VocabShard(start=0, real=REAL, tokens_per_chunk=2)


def filtered(row: list[float], sampling: Sampling) -> list[float]:
    """Log-probs of one token's real vocabulary after temperature, top-k, top-p, by the book."""
    scaled = [value / sampling.temperature for value in row]
    if sampling.top_k is not None:
        lowest = sorted(scaled, reverse=True)[: sampling.top_k][-1]
        scaled = [value if value >= lowest else -math.inf for value in scaled]
    mass = math.fsum(math.exp(value - max(scaled)) for value in scaled)
    if sampling.top_p < 1:
        reached, lowest = 0.0, math.inf
        for value in sorted(scaled, reverse=True):
            if reached >= sampling.top_p:
                break
            reached += math.exp(value - max(scaled)) / mass
            lowest = value
        scaled = [value if value >= lowest else -math.inf for value in scaled]
        mass = math.fsum(math.exp(value - max(scaled)) for value in scaled)
    return [value - max(scaled) - math.log(mass) for value in scaled]


@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([1.0, 0.5, 3.0]),
    top_k=st.sampled_from([None, 1, 3, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.3, 1e-9]),
    digits=st.sampled_from([0, 12]),
)
@settings(deadline=None, max_examples=60)
def test_filtered_logprobs_equal_the_book(
    seed: int, temperature: float, top_k: int | None, top_p: float, digits: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, COLUMNS, dtype=torch.float64, generator=draw) * 2
    logits = logits.round(decimals=digits)
    targets = torch.randint(0, REAL, (5,), generator=draw)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    expected = [
        filtered(row[:REAL], sampling)[target]
        for row, target in zip(logits.tolist(), targets.tolist(), strict=True)
    ]
    got = target_logprobs(logits, targets, TWO_AT_ONCE, sampling=sampling)
    assert got.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_gradient_under_a_filter_is_that_of_the_kept_tokens() -> None:
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(6, REAL, dtype=torch.float64, generator=draw, requires_grad=True)
    targets = logits.detach().argmax(dim=-1)
    sampling = Sampling(temperature=0.7, top_k=4)
    target_logprobs(logits, targets, TWO_AT_ONCE, sampling=sampling).sum().backward()
    theirs = logits.detach().clone().requires_grad_()
    kept = theirs >= theirs.topk(4, dim=-1).values[:, -1:]
    scaled = (theirs / 0.7).masked_fill(~kept, -torch.inf)
    scaled.log_softmax(-1).gather(1, targets[:, None]).sum().backward()
    torch.testing.assert_close(logits.grad, theirs.grad, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 10**6), tokens=st.integers(1, 9))
@settings(deadline=None, max_examples=20)
def test_lm_head_by_chunks_equals_whole_logits(seed: int, tokens: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, 6, dtype=torch.float64, generator=draw)
    weight = torch.randn(COLUMNS, 6, dtype=torch.float64, generator=draw)
    targets = torch.randint(0, REAL, (tokens,), generator=draw)
    ours = [value.clone().requires_grad_() for value in (hidden, weight)]
    theirs = [value.clone().requires_grad_() for value in (hidden, weight)]
    got = source_logprobs(LmHead(hidden=ours[0], weight=ours[1]), targets, TWO_AT_ONCE)
    whole = (theirs[0] @ theirs[1].T)[:, :REAL].log_softmax(-1)
    expected = whole.gather(1, targets[:, None]).squeeze(1)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    scale = torch.randn(tokens, dtype=torch.float64, generator=draw)
    (got * scale).sum().backward()
    (expected * scale).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-12, atol=1e-12)


def test_lm_head_of_bf16_is_as_close_to_float64_as_whole_bf16_logits() -> None:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 32, generator=draw).bfloat16()
    weight = torch.randn(COLUMNS, 32, generator=draw).bfloat16()
    targets = torch.randint(0, REAL, (64,), generator=draw)
    gradients = {}
    for name in ("chunks", "whole", "float64"):
        dtype = torch.float64 if name == "float64" else torch.bfloat16
        own_hidden = hidden.clone().to(dtype).requires_grad_()
        own_weight = weight.clone().to(dtype).requires_grad_()
        source = (
            LmHead(hidden=own_hidden, weight=own_weight)
            if name == "chunks"
            else StoredLogits(logits=own_hidden @ own_weight.T)
        )
        source_logprobs(source, targets, TWO_AT_ONCE).sum().backward()
        assert own_weight.grad is not None
        gradients[name] = own_weight.grad.double()
    truth = gradients["float64"]
    own = (gradients["whole"] - truth).abs().max()
    assert (gradients["chunks"] - truth).abs().max() <= 4 * own


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(top_k=3, top_p=0.5)], ids=["plain", "filtered"]
)
def test_lm_head_never_makes_logits_of_all_tokens(sampling: Sampling) -> None:
    largest = {}
    for tokens in (64, 256):
        hidden = torch.randn(tokens, 4, requires_grad=True)
        weight = torch.randn(512, 4, requires_grad=True)
        shard = VocabShard(start=0, real=500, tokens_per_chunk=8)
        head = LmHead(hidden=hidden, weight=weight)
        targets = torch.zeros(tokens, dtype=torch.int64)
        with LargestTensor() as seen:
            source_logprobs(head, targets, shard, sampling=sampling).sum().backward()
            topk_of(head, targets, shard, k=5)
        largest[tokens] = seen.values
    assert largest == {64: 8 * 512, 256: 8 * 512}


def test_topk_takes_the_lower_id_of_five_equal_values() -> None:
    row = [0.0, 2.0, 9.0, 2.0, 2.0, 2.0, 1.0, 2.0, 7.0, 2.0, 0.0]
    logits = torch.tensor([row, row[::-1]], dtype=torch.float64)
    best = topk_of(StoredLogits(logits=logits), torch.tensor([2, 8]), TWO_AT_ONCE, k=4)
    assert best.ids.tolist() == [[2, 8, 1, 3], [8, 2, 1, 3]]
    assert best.logits.tolist() == [[9.0, 7.0, 2.0, 2.0]] * 2
    expected = logits.log_softmax(-1)
    torch.testing.assert_close(best.logits - best.log_sum[:, None], expected.gather(1, best.ids))
    torch.testing.assert_close(best.target_logprobs, expected[[0, 1], [2, 8]])


@given(
    values=st.lists(st.lists(st.integers(-2, 2), min_size=7, max_size=7), min_size=1, max_size=5),
    k=st.integers(1, 9),
)
@settings(deadline=None, max_examples=60)
def test_topk_by_id_equals_sorting_by_value_and_id(values: list[list[int]], k: int) -> None:
    got, columns = topk_by_id(torch.tensor(values, dtype=torch.float32), k)
    for row, found, ids in zip(values, got.tolist(), columns.tolist(), strict=True):
        expected = sorted(range(7), key=lambda column: (-row[column], column))[:k]
        assert ids == expected
        assert found == [row[column] for column in expected]


def test_padding_columns_are_never_among_the_top() -> None:
    logits = torch.full((3, COLUMNS), -5.0)
    logits[:, REAL:] = 100.0
    best = topk_of(
        StoredLogits(logits=logits), torch.zeros(3, dtype=torch.int64), TWO_AT_ONCE, k=REAL
    )
    assert best.ids.tolist() == [list(range(REAL))] * 3


@pytest.mark.parametrize("k", [0, REAL + 1])
def test_topk_beyond_the_vocabulary_is_refused(k: int) -> None:
    source = StoredLogits(logits=torch.zeros(1, COLUMNS))
    with pytest.raises(ConfigError, match=f"k = {k}, expected 1 <= k <= vocabulary = {REAL}"):
        topk_of(source, torch.zeros(1, dtype=torch.int64), TWO_AT_ONCE, k=k)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": 0.0}, r"Sampling\.temperature = 0\.0, expected a finite number above 0"),
        ({"top_k": 0}, r"Sampling\.top_k = 0, expected at least 1"),
        ({"top_p": 0.0}, r"Sampling\.top_p = 0\.0, expected 0 < top_p <= 1"),
        ({"top_p": 1.5}, r"Sampling\.top_p = 1\.5, expected 0 < top_p <= 1"),
    ],
)
def test_sampling_out_of_range_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling(**wrong)
