"""`TailSums`: the log-probability of all tokens outside a chosen set, over vocabulary shards.

Summed over the columns that are not chosen, so that a tail of 1e-9 is as exact as one of 0.5;
one minus the sum of the chosen would be rounding alone. Letters: n tokens, c of a chunk, K.
"""

from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist

from megapack.parallel.collectives import all_reduce
from megapack.parallel.vocab_shard import VocabShard


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TailSums:
    """What this rank's columns contribute, two values a token.

    Attributes:
        shard: columns of this rank.
        high: [n], largest logit that is not chosen, -inf where all are chosen.
        total: [n], sum of exp(logit - high) over those that are not chosen.
    """

    shard: VocabShard
    high: torch.Tensor
    total: torch.Tensor

    @classmethod
    def start(cls, tokens: int, shard: VocabShard, *, like: torch.Tensor) -> Self:
        """No chunk seen yet.

        Args:
            tokens: n.
            shard: columns of this rank.
            like: a tensor of the wide dtype on the device.
        """
        total = like.new_zeros(tokens)
        return cls(shard=shard, high=torch.full_like(total, -torch.inf), total=total)

    def add(self, part: slice, values: torch.Tensor, chosen: torch.Tensor) -> None:
        """Take a chunk.

        Args:
            part: tokens of the chunk.
            values: [c, real], scaled logits; not modified.
            chosen: int64 [c, K], global ids, each once a token.
        """
        if not self.shard.real:
            return
        inside, column = self.shard.find(chosen)
        # Adding -inf takes a column out; ids of other ranks add zero to some column.
        out = torch.where(inside, -torch.inf, 0.0).to(values.dtype)
        left = values.scatter_add(1, column, out)
        high = left.amax(dim=-1)
        self.high[part] = high
        base = torch.where(high == -torch.inf, 0.0, high)
        self.total[part] = left.sub_(base[:, None]).exp_().sum(dim=-1)

    def finish(self, top: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """Collective over the tensor parallel group: [n] log-probability of what is not chosen.

        Args:
            top: [n], largest logit of the whole vocabulary.
            total: [n], sum of exp(logit - top) over the whole vocabulary.
        """
        high = all_reduce(self.high, self.shard.group, op=dist.ReduceOp.MAX)
        own = torch.where(self.total == 0, 0.0, self.total * (self.high - high).exp())
        left = all_reduce(own, self.shard.group)
        # Logits may be far from zero and near each other: rounded once, at the end.
        share = left.double().log() - total.double().log()
        return ((high.double() - top.double()) + share).to(high.dtype)
