"""`lm_head_rows`: the LM head of a model to the host, some rows at a time.

Rows of the real vocabulary only, in order, the same blocks at any tp: what is written of them does
not depend on how the teacher was split. Letters: V real vocabulary, H hidden size, r rows of a
block.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from megapack.errors import ConfigError, ContractError
from megapack.model.keywords import bare
from megapack.parallel.context import ParallelContext
from megapack.parallel.payload_dtypes import TORCH_DTYPES
from megapack.records.payload import PayloadDtype

_PAYLOAD = {torch_dtype: dtype for dtype, torch_dtype in TORCH_DTYPES.items()}


def lm_head_dtype(chunk: Any) -> PayloadDtype:  # noqa: ANN401 - upstream type
    """How `lm_head_rows` gives the rows: the weights' own dtype.

    Args:
        chunk: last pipeline stage, from `build_model`.

    Raises:
        ConfigError: the weights are in another dtype than payloads have.
    """
    dtype = _weight(chunk).dtype
    if dtype not in _PAYLOAD:
        raise ConfigError(
            f"LM head: expected weights in one of {[kind.value for kind in PayloadDtype]}, found "
            f"{dtype}. Extract with a model in one of these."
        )
    return _PAYLOAD[dtype]


def lm_head_rows(
    chunk: Any,  # noqa: ANN401 - upstream type
    context: ParallelContext,
    rows_at_once: int,
) -> Iterator[npt.NDArray[Any]]:
    """Collective over tp_group: blocks of the LM head's rows, on the group's first rank.

    All ranks of one tp group of the last stage iterate to the end; the other ranks of the group
    are given nothing. Never more than `rows_at_once` rows are gathered.

    Args:
        chunk: last pipeline stage, from `build_model`; embeddings may be tied.
        context: this rank.
        rows_at_once: rows of a block; the last one may be shorter.

    Yields:
        [r, H], C order, on the host, in `lm_head_dtype`; bfloat16 as its uint16 bits.

    Raises:
        ContractError: the rank is not on the last stage, or rows_at_once is below 1.
    """
    if not context.is_last_stage or rows_at_once < 1:
        raise ContractError(
            f"lm_head_rows: expected the last pipeline stage and rows_at_once >= 1, found stage "
            f"{context.pp_rank} of {context.sizes.pp} and {rows_at_once}."
        )
    weight, vocab_size = _weight(chunk).detach(), int(bare(chunk).real_vocab_size)
    for first in range(0, vocab_size, rows_at_once):
        block = _block(weight, context, first, min(first + rows_at_once, vocab_size))
        if context.tp_rank == 0:
            host = block.cpu()
            host = host.view(torch.uint16) if host.dtype is torch.bfloat16 else host
            yield np.ascontiguousarray(host.numpy())


def _weight(chunk: Any) -> torch.Tensor:  # noqa: ANN401 - upstream type
    """[V/tp, H] of this rank, padding included."""
    model = bare(chunk)
    tied = model.share_embeddings_and_output_weights
    weight = model.shared_embedding_or_output_weight() if tied else model.output_layer.weight
    if not isinstance(weight, torch.Tensor):
        raise ContractError(f"LM head: expected a weight on this stage, found {type(weight)}.")
    return weight


def _block(weight: torch.Tensor, context: ParallelContext, first: int, last: int) -> torch.Tensor:
    """Collective over tp_group: vocabulary rows [first, last), which may lie on several ranks."""
    if context.sizes.tp == 1:
        return weight[first:last]
    block = weight.new_empty((last - first, weight.shape[1]))
    own = weight.shape[0]
    for rank in range(first // own, (last - 1) // own + 1):
        low, high = max(first, rank * own), min(last, (rank + 1) * own)
        part = block[low - first : high - first]
        if rank == context.tp_rank:
            part.copy_(weight[low - rank * own : high - rank * own])
        dist.broadcast(part, group=context.tp_group, group_src=rank)
    return block
