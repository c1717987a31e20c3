"""`LogSums`: log-sum-exp and picked logits of all tokens, from one pass over chunks of logits."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist

from megapack.parallel.collectives import all_reduce
from megapack.parallel.lm_head import LogitChunks, wide
from megapack.parallel.vocab_shard import VocabShard


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogSums:
    """What this rank's columns contribute, three values a token.

    Attributes:
        shard: columns of this rank.
        inside: bool [n], whether the target is one of them.
        column: int64 [n], its column.
        high: [n], largest logit so far, -inf without columns.
        total: [n], sum of exp(logit - high).
        picked: [n], the target's logit, 0 where it is elsewhere.
    """

    shard: VocabShard
    inside: torch.Tensor
    column: torch.Tensor
    high: torch.Tensor
    total: torch.Tensor
    picked: torch.Tensor

    @classmethod
    def start(cls, source: LogitChunks, targets: torch.Tensor, shard: VocabShard) -> Self:
        """No chunk seen yet."""
        inside, column = shard.find(targets)
        like = source.tensors[0]
        zeros = torch.zeros(targets.shape, dtype=wide(like.dtype), device=like.device)
        return cls(
            shard=shard,
            inside=inside,
            column=column,
            high=torch.full_like(zeros, -torch.inf),
            total=zeros,
            picked=torch.zeros_like(zeros),
        )

    def add(self, part: slice, values: torch.Tensor, threshold: torch.Tensor | None) -> None:
        """Take a chunk.

        Args:
            part: tokens of the chunk.
            values: [c, real], scaled logits; not modified.
            threshold: [c], logits below it count as -inf; None keeps all.
        """
        if not self.shard.real:
            return
        high = values.amax(dim=-1)
        if threshold is not None:
            values = values.masked_fill(values < threshold[:, None], -torch.inf)
        own = values.gather(1, self.column[part, None]).squeeze(1)
        self.high[part] = high
        self.picked[part] = torch.where(self.inside[part], own, 0.0)
        self.total[part] = (values - high[:, None]).exp_().sum(dim=-1)

    def finish(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Collective over the tensor parallel group: put the ranks' columns together.

        Returns:
            Log-sum-exp over the whole vocabulary [n], and log-probability of the targets [n].
        """
        top, total, logprobs = self.parts()
        return top + total.log(), logprobs

    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Collective over the tensor parallel group: as `finish`, with the sum's terms apart.

        A log-prob is (logit - top) - total.log(): where logits are far from zero, top + total.log()
        would round more.

        Returns:
            Largest logit [n], sum of exp(logit - largest) [n], and log-probability of the
            targets [n].
        """
        top = all_reduce(self.high, self.shard.group, op=dist.ReduceOp.MAX)
        own = self.total * (self.high - top).exp()
        total, picked = all_reduce(torch.stack((own, self.picked)), self.shard.group)
        return top, total, (picked - top) - total.log()
