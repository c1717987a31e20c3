"""The mass outside the top-k, in one process, against sums in exact arithmetic.

Over vocabulary shards: tests/distributed/test_vocab_shards.py.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from megapack.parallel.lm_head import StoredLogits
from megapack.parallel.vocab import VocabShard
from megapack.parallel.vocab_topk import TopK, topk_by_id, topk_of

V = 500
WHOLE = VocabShard(start=0, real=V, tokens_per_chunk=3)


def top(logits: torch.Tensor, k: int, *, temperature: float = 1.0) -> TopK:
    targets = torch.zeros(len(logits), dtype=torch.int64)
    return topk_of(StoredLogits(logits=logits), targets, WHOLE, k=k, temperature=temperature)


def exact_tail(row: list[float], ids: list[int]) -> float:
    """Probability outside the ids, its exponentials summed without rounding."""
    high = max(row)
    mass = [Fraction(math.exp(value - high)) for value in row]
    left = sum((one for column, one in enumerate(mass) if column not in ids), Fraction())
    return float(left / sum(mass))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("gap", "base"), [(0.0, 0.0), (14.0, 0.0), (27.0, 0.0), (60.0, 300.0)])
def test_tail_is_right_however_small(dtype: torch.dtype, gap: float, base: float) -> None:
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(4, V, generator=draw) + base
    logits[:, ::50] += gap
    logits = logits.to(dtype)
    best = top(logits, 10)
    assert gap == 0.0 or best.ids.sort(dim=1).values.tolist() == [list(range(0, V, 50))] * 4
    for row, ids, log_tail in zip(
        logits.double().tolist(), best.ids.tolist(), best.tail_logprobs.tolist(), strict=True
    ):
        expected = exact_tail(row, ids)
        assert gap < 20 or expected < 1e-9
        # What storing the log in float32 costs, and the rounding of its sum.
        stored = 0.5 * float(np.spacing(np.float32(log_tail)))
        rounding = 1e-12 if dtype is torch.float64 else abs(stored) + 3e-7
        assert math.exp(log_tail) == pytest.approx(expected, rel=rounding)


def test_tail_and_top_are_all_there_is_under_a_temperature() -> None:
    logits = torch.randn(7, V, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    best = top(logits, 64, temperature=0.5)
    whole = best.logprobs.exp().sum(dim=1) + best.tail_logprobs.exp()
    torch.testing.assert_close(whole, torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-12)
    expected = (logits / 0.5).log_softmax(-1)
    torch.testing.assert_close(best.logprobs, expected.gather(1, best.ids), rtol=1e-12, atol=1e-12)


def test_tail_of_the_whole_vocabulary_is_nothing() -> None:
    assert top(torch.randn(7, V), V).tail_logprobs.tolist() == [-math.inf] * 7


def test_nan_among_logits_gives_nan_and_no_chosen_id_twice() -> None:
    logits = torch.randn(2, V)
    logits[1, 7] = torch.nan
    best = top(logits, 5)
    for values in (best.logprobs, best.tail_logprobs[:, None], best.target_logprobs[:, None]):
        assert values[0].isfinite().all()
        assert values[1].isnan().all()
    assert len(set(best.ids[1].tolist())) == 5
    assert topk_by_id(torch.tensor([[math.nan, 1.0, 2.0]]), 3)[1].tolist() == [[2, 1, 0]]
