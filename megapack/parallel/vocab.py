"""Exact log-probabilities of given tokens over logits that are split along the vocabulary.

One function serves the training loss, evaluation and teacher payloads. Differences from
megatron-core's vocab_parallel_cross_entropy: the logits are left as they are (that one
subtracts and exponentiates in place), columns that only pad the vocabulary take no part (their
number depends on tp, so a loss over them would too), float64 stays float64, and work runs in
chunks of tokens, so that no full-size float32 copy of the logits exists.

Letters: n tokens, V/tp = columns of this rank.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from megapack.parallel.collectives import all_reduce
from megapack.parallel.context import Group, ParallelContext

TOKENS_PER_CHUNK = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VocabShard:
    """The columns of the logits that this tensor parallel rank holds.

    Attributes:
        start: first vocabulary id of this rank.
        real: columns of this rank that belong to the real vocabulary, from its first on.
        group: tensor parallel group, None in one process.
    """

    start: int
    real: int
    group: Group | None = None

    @classmethod
    def of(cls, context: ParallelContext, *, columns: int, vocab_size: int) -> "VocabShard":
        """Shard of this rank.

        Args:
            context: this rank.
            columns: V/tp, columns that the rank holds, padding included.
            vocab_size: real vocabulary, padding not included.
        """
        start = context.tp_rank * columns
        return cls(
            start=start, real=min(max(vocab_size - start, 0), columns), group=context.tp_group
        )


def target_logprobs(
    logits: torch.Tensor, targets: torch.Tensor, shard: VocabShard, *, temperature: float = 1.0
) -> torch.Tensor:
    """Collective over the tensor parallel group: log-probability of each target token, in nats.

    Differentiable with respect to the logits.

    Args:
        logits: [n, V/tp], any float dtype, on the rank's device; not modified.
        targets: int64 [n], global vocabulary ids; positions that do not count may hold any value,
            and give the log-probability of token 0.
        shard: columns of this rank.
        temperature: logits are divided by it.

    Returns:
        [n], float64 for float64 logits, else float32; equal on all ranks of the group.
    """
    result: torch.Tensor = _TargetLogprobs.apply(logits, targets, shard, temperature)
    return result


class _TargetLogprobs(torch.autograd.Function):
    """Saves the logits in their own dtype and one float per token; backward recomputes."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's protocol
        logits: torch.Tensor,
        targets: torch.Tensor,
        shard: VocabShard,
        temperature: float,
    ) -> torch.Tensor:
        inside, column = _columns(targets, shard)
        high = logits.new_full((logits.shape[0],), -torch.inf, dtype=_wide(logits))
        total = torch.zeros_like(high)
        picked = torch.zeros_like(high)
        chunks = range(0, logits.shape[0], TOKENS_PER_CHUNK)
        if shard.real:
            for at in chunks:
                part = slice(at, at + TOKENS_PER_CHUNK)
                high[part] = _scaled(logits[part], shard, temperature).amax(dim=-1)
        high = all_reduce(high, shard.group, op=dist.ReduceOp.MAX)
        if shard.real:
            for at in chunks:
                part = slice(at, at + TOKENS_PER_CHUNK)
                shifted = _scaled(logits[part], shard, temperature) - high[part, None]
                own = shifted.gather(1, column[part, None]).squeeze(1)
                picked[part] = torch.where(inside[part], own, 0.0)
                total[part] = shifted.exp_().sum(dim=-1)
        total, picked = all_reduce(torch.stack((total, picked)), shard.group)
        log_total = total.log()
        ctx.save_for_backward(logits, inside, column, high + log_total)
        ctx.shard, ctx.temperature = shard, temperature
        logprobs: torch.Tensor = picked - log_total
        return logprobs

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # noqa: ANN401 - torch's protocol
        logits, inside, column, log_sum = ctx.saved_tensors
        shard: VocabShard = ctx.shard
        grad_logits = torch.zeros_like(logits)
        if shard.real:
            for at in range(0, logits.shape[0], TOKENS_PER_CHUNK):
                part = slice(at, at + TOKENS_PER_CHUNK)
                scaled = _scaled(logits[part], shard, ctx.temperature)
                share = (scaled - log_sum[part, None]).exp_().neg_()
                share.scatter_add_(1, column[part, None], inside[part, None].to(share.dtype))
                share.mul_(grad[part, None] / ctx.temperature)
                grad_logits[part, : shard.real] = share.to(logits.dtype)
        return grad_logits, None, None, None


def _columns(targets: torch.Tensor, shard: VocabShard) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether each target is on this rank, and its column there (0 where it is not)."""
    column = targets.clamp(min=0) - shard.start
    inside = (column >= 0) & (column < shard.real)
    return inside, torch.where(inside, column, 0)


def _scaled(logits: torch.Tensor, shard: VocabShard, temperature: float) -> torch.Tensor:
    """Real columns in the wide dtype; may share the logits' memory, so callers do not write."""
    wide = logits[:, : shard.real].to(_wide(logits))
    # Dividing by one costs 5% of a training step on CPU.
    return wide if temperature == 1.0 else wide / temperature


def _wide(logits: torch.Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32
