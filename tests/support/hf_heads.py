"""A head that keeps whole logits. Imports torch: only functions that run on ranks may import it."""

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist

from megapack.batch.microbatch import MicroBatch
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.head import HeadResult
from megapack.outputs.loss import TokenLossHead
from megapack.parallel.context import ParallelContext


@dataclass(kw_only=True, eq=False)
class LogitsHead:
    """The training loss; logits [n, V] of each microbatch are kept, real vocabulary only."""

    logits: list[np.ndarray] = field(default_factory=list)

    @property
    def needs(self) -> Need:
        return Need.LOGITS

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        shard = output.logits.detach().contiguous()
        shards = [torch.empty_like(shard) for _ in range(context.sizes.tp)]
        if context.sizes.tp > 1:
            dist.all_gather(shards, shard, group=context.tp_group)
        else:
            shards = [shard]
        self.logits.append(torch.cat(shards, 1)[:, : output.vocab_size].numpy())
        return TokenLossHead()(output, microbatch, context)
