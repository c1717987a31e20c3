"""The padding mask as routers see it. Apart from `megapack.model.moe`, which loads megatron-core.

True at padding, as megatron-core's code has it and its router's docstring does not.
"""

from typing import Any

import torch


def router_padding_mask(model: Any, padding_mask: torch.Tensor) -> torch.Tensor | None:  # noqa: ANN401 - upstream type
    """The padding mask that a model chunk wants with its microbatch, None for a dense model.

    Under sequence parallelism the routers see this tensor parallel rank's part of the row.
    GPTModel cuts the mask on the first pipeline stage only, so it is cut here for the others.

    Args:
        model: GPTModel of this rank, not wrapped.
        padding_mask: bool [1, T/cp], True at padding.

    Returns:
        bool [1, T/cp] (on later stages under sequence parallelism [1, T/cp/tp]), True at padding.
    """
    if model.config.num_moe_experts is None:
        return None
    return padding_mask if model.pre_process else sequence_parallel_part(model, padding_mask)


def sequence_parallel_part(model: Any, values: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - upstream type
    """This tensor parallel rank's part of [1, T/cp]: all of it without sequence parallelism."""
    if not model.config.sequence_parallel:
        return values
    rank, size = model.pg_collection.tp.rank(), model.pg_collection.tp.size()
    part: torch.Tensor = values.chunk(size, dim=1)[rank].contiguous()
    return part
