"""A packed row as the microbatch of one rank, without megatron-core's offsets."""

from typing import Any

import numpy as np
import torch

from megapack.batch.microbatch import MicroBatch, ThdAttention
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow

ONE = ParallelContext.single()


def microbatch(row: PackedRow, context: ParallelContext = ONE) -> MicroBatch:
    """What `to_microbatch` gives, but for megatron-core's offsets."""
    index = row.layout.cp_index(cp_size=context.sizes.cp, cp_rank=context.cp_rank)

    def share(values: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.array(values)[index])[None].to(dtype)

    return MicroBatch(
        tokens=share(row.tokens, torch.int64),
        labels=share(row.labels(), torch.int64),
        loss_mask=share(row.loss_mask(), torch.float32),
        position_ids=share(row.layout.position_ids(), torch.int64),
        padding_mask=share(row.layout.padding_mask(), torch.bool),
        row_mask=torch.ones(1),
        attention=ThdAttention(
            layout=row.layout, cp_index=torch.from_numpy(index), packed_seq_params=None
        ),
        row=row,
    )
