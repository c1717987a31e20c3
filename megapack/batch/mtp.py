"""What the multi-token prediction layers see of a row: the same values, further to the left.

Layer k reads the token k ahead and predicts the one after it. Everything is shifted inside each
document, on the whole row and before context parallelism cuts it, so that no document reads the
next one and no rank needs its neighbour's tokens. Letters: T = row_length, cp = context parallel
size.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from megapack.batch.microbatch import MicroBatch
from megapack.layout.pack_layout import IGNORE_INDEX
from megapack.layout.token_fields import shift_left
from megapack.parallel.collectives import sum_counts
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MtpView:
    """One multi-token prediction layer's share of a microbatch, on the microbatch's device.

    Attributes:
        tokens: int64 [1, T/cp] (dense: [B, S]), the token k ahead; 0 where the document has none.
        padding_mask: bool [1, T/cp], True at padding and where the document has no such token.
        labels: int64 [1, T/cp], what the layer predicts, -100 where it does not count.
    """

    tokens: torch.Tensor
    padding_mask: torch.Tensor
    labels: torch.Tensor


def mtp_views(microbatch: MicroBatch, *, depths: int) -> tuple[MtpView, ...]:
    """Views of a microbatch for layers 1 to `depths`.

    Args:
        microbatch: this rank's share of a row.
        depths: multi-token prediction layers of the model.
    """
    row, device = microbatch.row, microbatch.tokens.device

    def share(values: npt.NDArray[Any], by: int, fill: int, dtype: torch.dtype) -> torch.Tensor:
        mine = microbatch.attention.local(shift_left(values, row.layout, by=by, fill=fill))
        return torch.from_numpy(mine).to(device=device, dtype=dtype)

    labels, padding = row.labels(), np.zeros(row.layout.row_length, np.bool_)
    return tuple(
        MtpView(
            tokens=share(row.tokens, by, 0, torch.int64),
            padding_mask=share(padding, by, 1, torch.bool),
            labels=share(labels, by, IGNORE_INDEX, torch.int64),
        )
        for by in range(1, depths + 1)
    )


def mtp_target_counts(
    rows: Iterable[PackedRow], context: ParallelContext, *, depths: int
) -> list[int]:
    """Collective over dp_group: labels of a step that count for each layer, in int64.

    Args:
        rows: this dp rank's rows of the step; the same on its tp, cp and pp ranks.
        context: this rank.
        depths: multi-token prediction layers of the model.
    """
    counts = [0] * depths
    for row in rows:
        counted = row.loss_mask()
        for depth in range(depths):
            shifted = shift_left(counted, row.layout, by=depth + 1, fill=False)
            counts[depth] += int(shifted.sum())
    return sum_counts(counts, context.dp_group, device=context.device)
