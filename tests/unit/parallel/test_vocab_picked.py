"""Log-probs of picked tokens and of the rest, against whole distributions, in one process.

Over vocabulary shards: tests/distributed/test_distill_losses.py.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.parallel.lm_head import LmHead, StoredLogits
from megapack.parallel.vocab import VocabShard, source_logprobs
from megapack.parallel.vocab_picked import picked_logprobs

REAL, COLUMNS, HIDDEN = 11, 16, 6
TWO_AT_ONCE = VocabShard(start=0, real=REAL, tokens_per_chunk=2)


def by_the_book(
    logits: torch.Tensor, ids: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of whole real logits; -inf for -1, and where nothing is left."""
    whole = (logits / temperature).log_softmax(-1)
    picked = [
        torch.stack([row[i] if i >= 0 else row.new_tensor(-torch.inf) for i in of])
        for row, of in zip(whole, ids.tolist(), strict=True)
    ]
    left = [
        torch.stack([row[v] for v in range(REAL) if v not in of] or [row.new_tensor(-torch.inf)])
        for row, of in zip(whole, ids.tolist(), strict=True)
    ]
    return torch.stack(picked), torch.stack([row.logsumexp(0) for row in left])


@given(
    seed=st.integers(0, 10**6),
    k=st.sampled_from([1, 4, REAL]),
    temperature=st.sampled_from([1.0, 0.5, 3.0]),
    tokens=st.integers(1, 5),
    lm_head=st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_picked_and_rest_and_their_gradients_equal_the_book(
    *, seed: int, k: int, temperature: float, tokens: int, lm_head: bool
) -> None:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, HIDDEN, dtype=torch.float64, generator=draw)
    weight = torch.randn(COLUMNS, HIDDEN, dtype=torch.float64, generator=draw)
    ids = torch.stack([torch.randperm(REAL, generator=draw)[:k] for _ in range(tokens)])
    if k > 1:
        ids[0, 1] = -1
    ours = [value.clone().requires_grad_() for value in (hidden, weight)]
    theirs = [value.clone().requires_grad_() for value in (hidden, weight)]
    head = LmHead(hidden=ours[0], weight=ours[1])
    source = head if lm_head else StoredLogits(logits=head.hidden @ head.weight.T)
    got = picked_logprobs(source, ids, TWO_AT_ONCE, temperature=temperature)
    expected = by_the_book((theirs[0] @ theirs[1].T)[:, :REAL], ids, temperature)
    factors = [torch.randn(value.shape, dtype=torch.float64, generator=draw) for value in got]
    for values in (got, expected):
        finite = [
            torch.where(value.isfinite(), value * factor, 0.0).sum()
            for value, factor in zip(values, factors, strict=True)
        ]
        sum(finite).backward()
    for found, other in zip(got, expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-12, atol=1e-12)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-12, atol=1e-12)


def test_rest_is_exact_where_one_minus_the_sum_is_rounding() -> None:
    logits = torch.full((1, REAL), -40.0)
    logits[0, 3] = 0.0
    logits.requires_grad_()
    _, rest = picked_logprobs(StoredLogits(logits=logits), torch.tensor([[3]]), TWO_AT_ONCE)
    assert float(rest.detach()) == pytest.approx(math.log(REAL - 1) - 40, rel=1e-7)
    rest.sum().backward()
    # A tenth to each of the others, and nothing that overflowed where the picked one stands.
    torch.testing.assert_close(logits.grad[0, :3], torch.full((3,), 0.1))
    assert float(logits.grad[0, 3]) == pytest.approx(-1.0)


def test_picking_everything_leaves_nothing_and_no_nan() -> None:
    logits = torch.randn(2, COLUMNS, generator=torch.Generator().manual_seed(1)).requires_grad_()
    ids = torch.arange(REAL).expand(2, REAL)
    picked, rest = picked_logprobs(StoredLogits(logits=logits), ids, TWO_AT_ONCE)
    assert rest.tolist() == [-torch.inf] * 2
    (picked.sum() + torch.where(rest.isfinite(), rest, 0.0).sum()).backward()
    assert logits.grad.isfinite().all()
    assert not logits.grad[:, REAL:].any(), "columns that pad the vocabulary take no part"


def test_token_that_the_student_rules_out_is_nothing_that_is_left() -> None:
    logits = torch.randn(1, COLUMNS, generator=torch.Generator().manual_seed(1))
    logits[0, 4] = -torch.inf
    logits.requires_grad_()
    ids = torch.tensor([[v for v in range(REAL) if v != 4]])
    picked, rest = picked_logprobs(StoredLogits(logits=logits), ids, TWO_AT_ONCE)
    assert rest.tolist() == [-torch.inf]
    picked.square().sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 4] == 0.0


def test_only_the_named_rows_are_read() -> None:
    draw = torch.Generator().manual_seed(2)
    logits = torch.randn(5, COLUMNS, dtype=torch.float64, generator=draw)
    logits[[0, 3]] = torch.nan
    logits.requires_grad_()
    rows = torch.tensor([1, 2, 4])
    labels = torch.tensor([0, 7, 5, 7, REAL - 1])
    source = StoredLogits(logits=logits)
    picked, _ = picked_logprobs(source, labels[rows, None], TWO_AT_ONCE, rows=rows)
    expected = source_logprobs(source, labels, TWO_AT_ONCE)[rows]
    torch.testing.assert_close(picked.squeeze(1), expected, rtol=1e-12, atol=1e-12)
    picked.sum().backward()
    assert not logits.grad[[0, 3]].any()
    assert logits.grad.isfinite().all()


def test_no_row_at_all_gives_zero_gradients() -> None:
    logits = torch.randn(3, COLUMNS, requires_grad=True)
    none = torch.zeros(0, dtype=torch.int64)
    source = StoredLogits(logits=logits)
    picked, rest = picked_logprobs(source, none.reshape(0, 4), TWO_AT_ONCE, rows=none)
    (picked.sum() + rest.sum()).backward()
    assert not logits.grad.any()
