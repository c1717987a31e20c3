"""How close a guess of the next token comes to the distribution it guesses, under one LM head.

Both distributions come from hidden states and the same weight, chunk by chunk, so that logits of
all positions never exist; only the guess's hidden states get a gradient. Columns that pad the
vocabulary take no part. Letters: n tokens, c tokens of a chunk, V/tp columns of this rank, H.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from megapack.parallel.collectives import all_reduce
from megapack.parallel.lm_head import wide
from megapack.parallel.vocab_shard import VocabShard

_NO_ID = torch.iinfo(torch.int64).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """Two hidden states a token, and the LM head that they share.

    Attributes:
        guess: [n, H], the same on all tp ranks; its gradient is this rank's share.
        truth: [n, H], the same on all tp ranks; gets no gradient.
        weight: [V/tp, H], rows of this rank; gets no gradient.
    """

    guess: torch.Tensor
    truth: torch.Tensor
    weight: torch.Tensor

    def chunks(self, shard: VocabShard) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Chunk, and the guess's and the truth's logits [c, real] in the wide dtype."""
        if not shard.real:
            return
        weight = self.weight[: shard.real]
        for part in shard.chunks(self.guess.shape[0], columns=self.weight.shape[0]):
            guess, truth = (F.linear(one[part], weight) for one in (self.guess, self.truth))
            yield part, shard.scaled(guess, 1.0), shard.scaled(truth, 1.0)


def match(pair: Pair, shard: VocabShard) -> tuple[torch.Tensor, torch.Tensor]:
    """Collective over the tensor parallel group: distance of two distributions a token.

    Args:
        pair: hidden states and weight.
        shard: columns of this rank.

    Returns:
        Kullback-Leibler divergence of the guess from the truth, sum of p log(p / q) [n] in nats,
        float64 for float64 hidden states, else float32, differentiable with respect to `guess`;
        and bool [n], whether the likeliest token is the same (of equal ones the lower id).
    """
    kl, agrees = _Match.apply(pair.guess, pair.truth, pair.weight, shard)
    return kl, agrees


class _Match(torch.autograd.Function):
    """Saves the hidden states and two values a token; backward projects again."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's protocol
        guess: torch.Tensor,
        truth: torch.Tensor,
        weight: torch.Tensor,
        shard: VocabShard,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        zeros = torch.zeros(guess.shape[0], dtype=wide(guess.dtype), device=guess.device)
        # Guess's and truth's largest logit, and where it is.
        highs = torch.full_like(zeros, -torch.inf).repeat(2, 1)
        best = torch.full_like(highs, _NO_ID, dtype=torch.int64)
        # Sum of exp over the columns of the guess and of the truth; the truth's sum of exp times
        # the difference of both logits.
        sums = zeros.repeat(3, 1)
        for part, q, p in Pair(guess=guess, truth=truth, weight=weight).chunks(shard):
            for row, values in enumerate((q, p)):
                column = values.argmax(dim=-1)
                best[row, part] = shard.start + column
                highs[row, part] = values.gather(1, column[:, None]).squeeze(1)
            mass = (p - highs[1, part, None]).exp_()
            sums[0, part] = (q - highs[0, part, None]).exp_().sum(dim=-1)
            sums[1, part] = mass.sum(dim=-1)
            sums[2, part] = mass.mul_(p - q).sum(dim=-1)
        tops = all_reduce(highs, shard.group, op=dist.ReduceOp.MAX)
        scale = (highs - tops).exp()
        own = torch.cat((sums[:2] * scale, sums[2:] * scale[1]))
        total = all_reduce(own, shard.group)
        ids = all_reduce(
            torch.where(highs == tops, best, _NO_ID), shard.group, op=dist.ReduceOp.MIN
        )
        log_sums = tops + total[:2].log()
        agrees = ids[0] == ids[1]
        ctx.save_for_backward(guess, truth, weight, log_sums)
        ctx.shard = shard
        ctx.mark_non_differentiable(agrees)
        return total[2] / total[1] + log_sums[0] - log_sums[1], agrees

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 - torch's protocol
        grad: torch.Tensor,
        _: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        guess, truth, weight, log_sums = ctx.saved_tensors
        gradient = torch.zeros_like(guess)
        for part, q, p in Pair(guess=guess, truth=truth, weight=weight).chunks(ctx.shard):
            share = (q - log_sums[0, part, None]).exp_()
            share -= (p - log_sums[1, part, None]).exp_()
            share.mul_(grad[part, None])
            gradient[part] = share.to(guess.dtype) @ weight[: ctx.shard.real]
        return gradient, None, None, None
