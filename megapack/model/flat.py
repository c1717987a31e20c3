"""megatron-core's [S, B, ...] activations as flat positions, in `labels.reshape(-1)` order.

Letters: S positions along the row (divided by cp, and by tp under sequence parallelism), B rows
beside one another, n = S * B.
"""

from typing import Any

import torch


def flat_rows(values: torch.Tensor) -> torch.Tensor:
    """[S, B, ...] to [S * B, ...], row after row; no copy for one row."""
    return values.transpose(0, 1).flatten(0, 1)


def flat_hidden(
    hidden: torch.Tensor,
    config: Any,  # noqa: ANN401 - upstream type
) -> torch.Tensor:
    """Hidden states before the LM head, flat.

    Collective over tp_group for several rows under sequence parallelism, which cuts each row: the
    flat positions are cut instead, so that joining the tp ranks' parts gives them in order.

    Args:
        hidden: [S, B, H], or [S/tp, B, H].
        config: the model's configuration.

    Returns:
        [n, H], or [n/tp, H].
    """
    if hidden.shape[1] == 1 or not config.sequence_parallel:
        return flat_rows(hidden)
    from megatron.core.tensor_parallel.mappings import (
        gather_from_sequence_parallel_region,
        scatter_to_sequence_parallel_region,
    )

    whole = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
    flat: torch.Tensor = scatter_to_sequence_parallel_region(flat_rows(whole))
    return flat
