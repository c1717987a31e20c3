"""A packed row as the microbatch of one process, without megatron-core."""

import numpy as np
import torch

from megapack.batch.microbatch import MicroBatch, ThdAttention
from megapack.records.packed_row import PackedRow


def microbatch(row: PackedRow) -> MicroBatch:
    def share(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(values))[None]

    length = row.layout.row_length
    return MicroBatch(
        tokens=share(row.tokens.astype(np.int64)),
        labels=share(row.labels()),
        loss_mask=share(row.loss_mask().astype(np.float32)),
        position_ids=share(row.layout.position_ids()),
        padding_mask=share(row.layout.padding_mask()),
        row_mask=torch.ones(1),
        attention=ThdAttention(
            layout=row.layout, cp_index=torch.arange(length), packed_seq_params=None
        ),
        row=row,
    )
