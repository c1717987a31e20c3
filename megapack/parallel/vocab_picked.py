"""Log-probs of several given tokens at each position, and of all the others together.

What a student needs against a teacher's top-k: log q at the teacher's ids, and the log of the
probability that is left. The latter is a log-sum-exp over the columns that were *not* picked, so
it is exact where 1 - sum would be rounding, and is -inf only when no column is left. One pass
forward and one in backward, by chunks of tokens. Letters: n tokens of the source, r of them that
are looked at, c of a chunk, K, real = columns of this rank in the real vocabulary.
"""

from typing import Any

import torch
import torch.distributed as dist

from megapack.parallel.collectives import all_reduce
from megapack.parallel.lm_head import LogitChunks, Part, wide
from megapack.parallel.vocab_shard import VocabShard


def picked_logprobs(
    source: LogitChunks,
    ids: torch.Tensor,
    shard: VocabShard,
    *,
    temperature: float = 1.0,
    rows: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Collective over the tensor parallel group: log-probs of the picked tokens and of the rest.

    Differentiable with respect to the source's tensors. Beyond them and their gradients, memory
    is one chunk and 3 K values a token.

    Args:
        source: logits, or hidden states with the LM head's weight.
        ids: int64 [r, K], global vocabulary ids, those of a token all different; one that is not
            in the real vocabulary, such as -1, has -inf and takes no part.
        shard: columns of this rank.
        temperature: logits are divided by it.
        rows: int64 [r], the tokens that are looked at, each at most once, the same on all ranks
            of the group; None for all n.

    Returns:
        [r, K] and [r], nats, float64 for float64 logits, else float32; equal on all ranks of the
        group. Normalised over the real vocabulary: the K + 1 probabilities of a token add up to 1.
    """
    if rows is None:
        rows = torch.arange(ids.shape[0], device=ids.device)
    logprobs, rest = _PickedLogprobs.apply(
        type(source), ids, rows, shard, temperature, *source.tensors
    )
    return logprobs, rest


class _PickedLogprobs(torch.autograd.Function):
    """Saves the source's tensors as they are and 2 K values a token; backward recomputes."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's protocol
        kind: type[LogitChunks],
        ids: torch.Tensor,
        rows: torch.Tensor,
        shard: VocabShard,
        temperature: float,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        source = kind.of(tensors)
        picked = torch.full(
            ids.shape, -torch.inf, dtype=wide(tensors[0].dtype), device=tensors[0].device
        )
        high = picked.new_full(rows.shape, -torch.inf)
        total = torch.zeros_like(high)
        for part in shard.chunks(rows.shape[0], columns=source.columns) if shard.real else ():
            values = _with_spare(source, rows[part], shard, temperature)
            place = _places(ids[part], shard)
            picked[part] = values.gather(1, place)
            values.scatter_(1, place, -torch.inf)
            high[part] = values.amax(dim=-1)
            total[part] = values.sub_(_finite(high[part])[:, None]).exp_().sum(dim=-1)
        highest = all_reduce(
            torch.cat((picked, high[:, None]), dim=1), shard.group, op=dist.ReduceOp.MAX
        )
        picked, top = highest[:, :-1], highest[:, -1]
        total = all_reduce(total * (high - _finite(top)).exp(), shard.group)
        left = top + total.log()
        log_sum = torch.cat((picked, left[:, None]), dim=1).logsumexp(dim=1)
        logprobs, rest = picked - log_sum[:, None], left - log_sum
        ctx.save_for_backward(ids, rows, logprobs, rest, left, *tensors)
        ctx.kind, ctx.shard, ctx.temperature = kind, shard, temperature
        return logprobs, rest

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 - torch's protocol
        of_picked: torch.Tensor,
        of_rest: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        ids, rows, logprobs, rest, left, *tensors = ctx.saved_tensors
        source: LogitChunks = ctx.kind.of(tuple(tensors))
        shard: VocabShard = ctx.shard
        of_picked = of_picked.masked_fill(logprobs == -torch.inf, 0.0) / ctx.temperature
        of_rest = of_rest.masked_fill(rest == -torch.inf, 0.0) / ctx.temperature
        total = of_picked.sum(dim=1) + of_rest
        at_picked = of_picked - total[:, None] * logprobs.exp()
        # Of another column: q_v (of_rest / q_rest - total), written with q_v / q_rest <= 1.
        others = of_rest - total * rest.exp()
        left = left.masked_fill(left == -torch.inf, torch.inf)
        gradients = source.gradients()
        for part in shard.chunks(rows.shape[0], columns=source.columns) if shard.real else ():
            share = _with_spare(source, rows[part], shard, ctx.temperature)
            share.sub_(left[part, None]).exp_().mul_(others[part, None])
            share.scatter_(1, _places(ids[part], shard), at_picked[part])
            gradients.add(rows[part], share[:, : shard.real])
        return None, None, None, None, None, *gradients.result()


def _places(ids: torch.Tensor, shard: VocabShard) -> torch.Tensor:
    """int64 [c, K]: each id's column on this rank; `real`, a column to spare, where it has none."""
    column = ids - shard.start
    inside = (ids >= 0) & (column >= 0) & (column < shard.real)
    return torch.where(inside, column, shard.real)


def _with_spare(
    source: LogitChunks, part: Part, shard: VocabShard, temperature: float
) -> torch.Tensor:
    """[c, real + 1]: scaled logits of a chunk, to be written to, and -inf in a column to spare."""
    scaled = shard.scaled(source.read(part), temperature)
    return torch.nn.functional.pad(scaled, (0, 1), value=-torch.inf)


def _finite(values: torch.Tensor) -> torch.Tensor:
    """What may be subtracted: 0 for -inf."""
    return values.masked_fill(values == -torch.inf, 0.0)
