"""Log-probs, filters and top-k over two vocabulary shards are those of the whole vocabulary.

Each rank computes both, so one world serves all cases.
"""

from typing import Any

import pytest

from tests.support.ranks import RankServer


def compare(*, columns: int, real: int) -> dict[str, Any]:
    """Errors of a rank: its half of the columns against all of them in this process alone."""
    import torch

    from megapack.layout.granularity import ParallelSizes
    from megapack.parallel.context import ParallelContext
    from megapack.parallel.lm_head import LmHead
    from megapack.parallel.sampling import Sampling
    from megapack.parallel.vocab import VocabShard, source_logprobs
    from megapack.parallel.vocab_topk import topk_of

    context = ParallelContext.initialize(ParallelSizes(tp=2), seed=0)
    draw = torch.Generator().manual_seed(5)
    # Small whole numbers: products are exact, so equal logits are many and truly equal.
    hidden = torch.randint(-2, 3, (7, 3), generator=draw).double()
    weight = torch.randint(-2, 3, (2 * columns, 3), generator=draw).double()
    targets = torch.randint(0, real, (7,), generator=draw)
    scale = torch.randn(7, dtype=torch.float64, generator=draw)
    mine = slice(context.tp_rank * columns, (context.tp_rank + 1) * columns)
    shard = VocabShard.of(context, columns=columns, vocab_size=real, tokens_per_chunk=3)
    whole = VocabShard(start=0, real=real)
    found: dict[str, Any] = {}
    for sampling in (
        Sampling(temperature=0.7),
        Sampling(top_k=4),
        Sampling(top_p=0.6),
        Sampling(temperature=1.3, top_k=5, top_p=0.8),
    ):
        results = []
        for rows, of in ((mine, shard), (slice(None), whole)):
            tensors = [value.clone().requires_grad_() for value in (hidden, weight[rows])]
            logprobs = source_logprobs(
                LmHead(hidden=tensors[0], weight=tensors[1]), targets, of, sampling=sampling
            )
            torch.where(logprobs.isfinite(), logprobs * scale, 0.0).sum().backward()
            results.append((logprobs.detach(), tensors[0].grad, tensors[1].grad))
        (ours, our_hidden, our_weight), (theirs, their_hidden, their_weight) = results
        torch.distributed.all_reduce(our_hidden, group=context.tp_group)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(our_hidden, their_hidden, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(our_weight, their_weight[mine], rtol=1e-12, atol=1e-12)
        found[str(sampling)] = int(ours.isfinite().sum())
    for k in (1, 5, real):
        split = topk_of(LmHead(hidden=hidden, weight=weight[mine]), targets, shard, k=k)
        one = topk_of(LmHead(hidden=hidden, weight=weight), targets, whole, k=k)
        assert torch.equal(split.ids, one.ids)
        assert torch.equal(split.logits, one.logits)
        torch.testing.assert_close(split.log_sum, one.log_sum, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(split.tail_logprobs, one.tail_logprobs, rtol=1e-12, atol=1e-12)
        assert split.tail_logprobs.isfinite().all() == (k < real)
    weight[2, 0] = torch.nan
    spoilt = topk_of(LmHead(hidden=hidden, weight=weight[mine]), targets, shard, k=5)
    for numbers in (spoilt.logprobs, spoilt.tail_logprobs, spoilt.target_logprobs):
        assert numbers.isnan().all(), "of one rank's columns, seen by both"
    found["ties"] = int((one.logits[:, 4] == one.logits[:, 5]).sum())
    context.destroy()
    return found


@pytest.mark.parametrize(
    ("columns", "real"), [(16, 27), (16, 13)], ids=["odd-padding", "second-rank-all-padding"]
)
def test_two_shards_equal_the_whole_vocabulary(ranks: RankServer, columns: int, real: int) -> None:
    first, second = ranks.run(compare, world_size=2, columns=columns, real=real)
    assert first == second
    assert first["ties"] > 0, "equal values stand at the k-th place"
    assert any(0 < count < 7 for name, count in first.items() if name != "ties")
