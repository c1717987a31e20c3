"""Exact log-probabilities of given tokens over logits that are split along the vocabulary.

One function serves the training loss, evaluation and teacher payloads, over logits that exist or
over hidden states that are projected chunk by chunk (`parallel.lm_head`). Differences from
megatron-core's vocab_parallel_cross_entropy: the logits are left as they are (that one
subtracts and exponentiates in place), columns that only pad the vocabulary take no part (their
number depends on tp, so a loss over them would too), float64 stays float64, and work runs in
chunks of tokens, so that no full-size float32 copy of the logits exists.

Letters: n tokens, V/tp = columns of this rank.
"""

from typing import Any

import torch

from megapack.parallel.lm_head import LmHead, LogitChunks, StoredLogits
from megapack.parallel.sampling import PLAIN, Sampling
from megapack.parallel.vocab_filter import kept_from
from megapack.parallel.vocab_shard import VocabShard
from megapack.parallel.vocab_sums import LogSums

__all__ = ["LmHead", "Sampling", "StoredLogits", "VocabShard", "source_logprobs", "target_logprobs"]


def target_logprobs(
    logits: torch.Tensor, targets: torch.Tensor, shard: VocabShard, *, sampling: Sampling = PLAIN
) -> torch.Tensor:
    """Collective over the tensor parallel group: log-probability of each target token, in nats.

    Args:
        logits: [n, V/tp], any float dtype, on the rank's device; not modified.
        targets: as in `source_logprobs`.
        shard: columns of this rank.
        sampling: temperature and filters.

    Returns:
        As `source_logprobs`.
    """
    return source_logprobs(StoredLogits(logits=logits), targets, shard, sampling=sampling)


def source_logprobs(
    source: LogitChunks, targets: torch.Tensor, shard: VocabShard, *, sampling: Sampling = PLAIN
) -> torch.Tensor:
    """Collective over the tensor parallel group: log-probability of each target token, in nats.

    Differentiable with respect to the source's tensors; which tokens a filter keeps counts as
    given. Beyond the source's tensors and their gradients, memory is one chunk and some values a
    token.

    Args:
        source: logits, or hidden states with the LM head's weight.
        targets: int64 [n], global vocabulary ids; positions that do not count may hold any value,
            and give the log-probability of token 0.
        shard: columns of this rank.
        sampling: temperature and filters; a target that is filtered out has -inf.

    Returns:
        [n], float64 for float64 logits, else float32; equal on all ranks of the group.
    """
    result: torch.Tensor = _TargetLogprobs.apply(
        type(source), targets, shard, sampling, *source.tensors
    )
    return result


class _TargetLogprobs(torch.autograd.Function):
    """Saves the source's tensors as they are and some values a token; backward recomputes."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's protocol
        kind: type[LogitChunks],
        targets: torch.Tensor,
        shard: VocabShard,
        sampling: Sampling,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        source = kind.of(tensors)
        sums = LogSums.start(source, targets, shard)
        thresholds = torch.full_like(sums.high, -torch.inf) if sampling.filters else None
        for part in shard.chunks(targets.shape[0], columns=source.columns):
            values = shard.scaled(source.read(part), sampling.temperature)
            threshold = kept_from(values, shard, sampling, columns=source.columns)
            if thresholds is not None and threshold is not None:
                thresholds[part] = threshold
            sums.add(part, values, threshold)
        log_sum, logprobs = sums.finish()
        ctx.save_for_backward(sums.inside, sums.column, log_sum, thresholds, *tensors)
        ctx.kind, ctx.shard, ctx.sampling = kind, shard, sampling
        return logprobs

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - torch's protocol
        inside, column, log_sum, thresholds, *tensors = ctx.saved_tensors
        source: LogitChunks = ctx.kind.of(tuple(tensors))
        shard: VocabShard = ctx.shard
        gradients = source.gradients()
        chunks = shard.chunks(grad.shape[0], columns=source.columns) if shard.real else ()
        for part in chunks:
            scaled = shard.scaled(source.read(part), ctx.sampling.temperature)
            share = (scaled - log_sum[part, None]).exp_().neg_()
            if thresholds is not None:
                share.masked_fill_(scaled < thresholds[part, None], 0.0)
            share.scatter_add_(1, column[part, None], inside[part, None].to(share.dtype))
            share.mul_(grad[part, None] / ctx.sampling.temperature)
            gradients.add(part, share)
        return None, None, None, None, *gradients.result()
