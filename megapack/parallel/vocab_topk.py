"""The k largest logits of each token over vocabulary shards, equal values by lower token id.

The rule for equal values makes the result a function of the logits alone: neither tp, nor chunks,
nor the device's sort decide it. torch.topk gives the k-th *value*, which is unique; the columns
are then chosen by comparison. One pass over the source gives the top-k, the mass of the rest, the
log-sum-exp over the whole vocabulary and the targets' log-probs. Letters: n tokens, c of a chunk,
K.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from megapack.errors import ConfigError
from megapack.parallel.collectives import all_reduce
from megapack.parallel.context import Group
from megapack.parallel.lm_head import LogitChunks
from megapack.parallel.vocab_shard import VocabShard
from megapack.parallel.vocab_sums import LogSums
from megapack.parallel.vocab_tail import TailSums

_NO_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopK:
    """The k likeliest tokens at each position. Equal on all ranks of the group.

    Attributes:
        logits: [n, K], divided by the temperature, falling; equal ones by rising id.
        ids: int64 [n, K], global vocabulary ids.
        top: [n], largest logit.
        log_total: [n], log of the sum of exp(logit - top) over the whole real vocabulary.
        tail_logprobs: [n], nats: log of the probability of all tokens that are not among the k,
            -inf where there are none.
        target_logprobs: [n], nats.
    """

    logits: torch.Tensor
    ids: torch.Tensor
    top: torch.Tensor
    log_total: torch.Tensor
    tail_logprobs: torch.Tensor
    target_logprobs: torch.Tensor

    @property
    def log_sum(self) -> torch.Tensor:
        """[n], log-sum-exp over the whole real vocabulary."""
        return self.top + self.log_total

    @property
    def logprobs(self) -> torch.Tensor:
        """[n, K], nats, normalised over the whole real vocabulary."""
        return (self.logits - self.top[:, None]).sub_(self.log_total[:, None])


@torch.no_grad()
def topk_of(
    source: LogitChunks,
    targets: torch.Tensor,
    shard: VocabShard,
    *,
    k: int,
    temperature: float = 1.0,
) -> TopK:
    """Collective over the tensor parallel group: top-k of each token. Not differentiable.

    Args:
        source: logits, or hidden states with the LM head's weight.
        targets: int64 [n], global ids; as for log-probs.
        shard: columns of this rank.
        k: how many.
        temperature: logits are divided by it.

    Raises:
        ConfigError: k is below 1 or above the real vocabulary.
    """
    sums = LogSums.start(source, targets, shard)
    _check(k, shard, device=targets.device)
    values = sums.high.new_empty((targets.shape[0], k))
    ids = targets.new_empty((targets.shape[0], k))
    tail = TailSums.start(targets.shape[0], shard, like=sums.high)
    for part in shard.chunks(targets.shape[0], columns=source.columns):
        scaled = shard.scaled(source.read(part), temperature)
        sums.add(part, scaled, None)
        own_values, own_columns = topk_by_id(scaled, k)
        values[part], ids[part] = _merge(own_values, own_columns + shard.start, shard.group, k=k)
        tail.add(part, scaled, ids[part])
    top, total, target_logprobs = sums.parts()
    return TopK(
        logits=values,
        ids=ids,
        top=top,
        log_total=total.log(),
        tail_logprobs=tail.finish(top, total),
        target_logprobs=target_logprobs,
    )


def topk_by_id(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest of each row, falling; of equal ones the lowest columns, rising. NaN is least.

    >>> topk_by_id(torch.tensor([[1.0, 3.0, 1.0, 3.0, 1.0]]), 3)[1].tolist()
    [[1, 3, 0]]

    Args:
        values: [c, columns]; not modified.
        k: how many; all when there are fewer columns.

    Returns:
        [c, min(k, columns)] values and int64 columns.
    """
    k = min(k, values.shape[1])
    if k == 0:
        empty = values[:, :0]
        return empty, empty.to(torch.int64)
    best = values.topk(k, dim=-1).values
    if best[:, 0].isnan().any():
        return topk_by_id(values.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf), k)
    lowest = best[:, -1:]
    above, equal = values > lowest, values == lowest
    room = k - above.sum(dim=-1, keepdim=True, dtype=torch.int32)
    chosen = above | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= room))
    columns = chosen.nonzero()[:, 1].view(-1, k)
    picked, order = values.gather(1, columns).sort(dim=-1, descending=True, stable=True)
    return picked, columns.gather(1, order)


def _merge(
    values: torch.Tensor, ids: torch.Tensor, group: Group | None, *, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Collective: the k largest of all ranks; in rank order, so that stable sorting is by id."""
    if group is None or dist.get_world_size(group) == 1:
        return values, ids
    missing = (0, k - values.shape[1])
    values = torch.nn.functional.pad(values, missing, value=-torch.inf)
    ids = torch.nn.functional.pad(ids, missing, value=_NO_TOKEN)
    all_values = torch.cat(_gather(values, group), dim=-1)
    all_ids = torch.cat(_gather(ids, group), dim=-1)
    best, order = all_values.sort(dim=-1, descending=True, stable=True)
    return best[:, :k], all_ids.gather(1, order[:, :k])


def _gather(value: torch.Tensor, group: Group) -> list[torch.Tensor]:
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, value.contiguous(), group=group)
    return parts


def _check(k: int, shard: VocabShard, *, device: torch.device) -> None:
    """Collective: k must fit into the real vocabulary of all ranks together."""
    real = int(all_reduce(torch.tensor(shard.real, device=device), shard.group))
    if not 1 <= k <= real:
        raise ConfigError(f"top-k: k = {k}, expected 1 <= k <= vocabulary = {real}.")
