"""Top-k and top-p over a vocabulary that is split over ranks: the smallest logit that is kept.

The ranks of the tensor parallel group exchange a chunk so that each has all columns of 1/tp of
its tokens, sorts those, and shares the thresholds. What is summed, and in which order, does not
depend on tp, so neither does the kept set. Masses are summed in float64. Letters: c tokens of a
chunk, r = those that one rank sorts, V = vocabulary with padding.
"""

import torch
import torch.distributed as dist

from megapack.parallel.context import Group
from megapack.parallel.sampling import Sampling
from megapack.parallel.vocab_shard import VocabShard


def kept_from(
    values: torch.Tensor, shard: VocabShard, sampling: Sampling, *, columns: int
) -> torch.Tensor | None:
    """Collective over the tensor parallel group: smallest scaled logit that is kept.

    Args:
        values: [c, real], scaled logits of a chunk; the same c on all ranks.
        shard: columns of this rank.
        sampling: what to keep.
        columns: V/tp, the same on all ranks.

    Returns:
        [c], equal on all ranks; None when nothing is filtered.
    """
    if not sampling.filters:
        return None
    padded = torch.nn.functional.pad(values, (0, columns - values.shape[1]), value=-torch.inf)
    size = 1 if shard.group is None else dist.get_world_size(shard.group)
    if shard.group is None or size == 1:
        return _threshold(padded, sampling)
    tokens = values.shape[0]
    padded = torch.nn.functional.pad(padded, (0, 0, 0, -tokens % size))
    mine = _threshold(_whole_rows(padded, shard.group), sampling)
    every = torch.empty(mine.shape[0] * size, dtype=mine.dtype, device=mine.device)
    dist.all_gather_into_tensor(every, mine, group=shard.group)
    return every[:tokens]


def _whole_rows(values: torch.Tensor, group: Group) -> torch.Tensor:
    """Collective: from [c, V/tp] of all tokens to [c/tp, V] of this rank's tokens."""
    size = dist.get_world_size(group)
    received = torch.empty_like(values)
    dist.all_to_all_single(received, values.contiguous(), group=group)
    blocks = received.view(size, values.shape[0] // size, values.shape[1])
    return blocks.transpose(0, 1).reshape(values.shape[0] // size, -1)


def _threshold(values: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """[r]: smallest kept value of each token's whole row [r, V]."""
    lowest = torch.full_like(values[:, 0], -torch.inf)
    if sampling.top_k is not None:
        k = min(sampling.top_k, values.shape[1])
        lowest = values.topk(k, dim=-1).values[:, -1]
    if sampling.top_p < 1:
        falling = values.sort(dim=-1, descending=True).values
        falling = falling.masked_fill_(falling < lowest[:, None], -torch.inf)
        mass = falling.to(torch.float64).softmax(dim=-1)
        # Kept while the tokens before it do not reach p: the first one always is.
        before = mass.cumsum(dim=-1) - mass
        last = (before < sampling.top_p).sum(dim=-1) - 1
        lowest = torch.maximum(lowest, falling.gather(1, last[:, None]).squeeze(1))
    return lowest
