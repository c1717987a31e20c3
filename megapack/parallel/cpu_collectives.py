"""Gathers of unequal parts, which gloo refuses and NCCL does.

megatron-core sends unequal parts over the expert tensor parallel group: each of its ranks holds
another number of tokens. Put in place by `megapack.parallel.patches`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from megapack.parallel.context import Group

Upstream = Callable[..., torch.Tensor]


def gather_unequal(original: Upstream) -> Upstream:
    """megatron-core's `_gather_along_first_dim`, for unequal parts too."""

    def gather(
        input_: torch.Tensor,
        group: Group,
        output_split_sizes: list[int] | None = None,
        *options: Any,  # noqa: ANN401 - upstream signature
    ) -> torch.Tensor:
        if output_split_sizes is None or len(set(output_split_sizes)) == 1:
            return original(input_, group, output_split_sizes, *options)
        parts = [input_.new_empty(size, *input_.shape[1:]) for size in output_split_sizes]
        parts[group.rank()] = input_.contiguous()
        for rank, part in enumerate(parts):
            dist.broadcast(part, group=group, group_src=rank)
        return torch.cat(parts)

    return gather
