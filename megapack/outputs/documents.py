"""From a rank's positions to documents and back.

Heads see a microbatch as one PackedRow, whatever kind it is. Letters: N documents, T positions of
the row, n = T/cp positions of this rank.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from megapack.batch.microbatch import MicroBatch
from megapack.layout.runs import Int64
from megapack.layout.token_fields import unplace
from megapack.parallel.collectives import gather_row
from megapack.parallel.context import ParallelContext


def document_of_position(microbatch: MicroBatch) -> Int64:
    """int64 [n]: document of each of this rank's positions, N in the tail."""
    attention = microbatch.attention
    owner: Int64 = attention.local(attention.layout.segment_ids()).reshape(-1).astype(np.int64)
    return owner


def spread(
    per_document: npt.NDArray[np.generic],
    microbatch: MicroBatch,
    context: ParallelContext,
) -> torch.Tensor:
    """[n] on the device: each position's value of its document, 0 in the tail.

    Args:
        per_document: [N].
        microbatch: whose positions.
        context: this rank.
    """
    values = np.append(per_document, np.zeros(1, per_document.dtype))
    return torch.from_numpy(values[document_of_position(microbatch)]).to(context.device)


def to_documents(
    values: torch.Tensor, microbatch: MicroBatch, context: ParallelContext
) -> list[torch.Tensor] | None:
    """Collective over cp_group: this rank's positions to documents, on the host.

    Args:
        values: [n, ...], equal on the tp ranks.
        microbatch: whose positions.
        context: this rank.

    Returns:
        N tensors [m, ...] of the same dtype on the writing rank, None on the others.
    """
    whole = gather_row(values.detach(), microbatch.attention.layout, context)
    if whole is None or not context.is_writer:
        return None
    host = whole.cpu().numpy()
    return [torch.from_numpy(part.copy()) for part in unplace(host, microbatch.attention.layout)]


def without_uncounted(values: Iterable[torch.Tensor], microbatch: MicroBatch) -> list[torch.Tensor]:
    """Float values by document, NaN where no label counts.

    Args:
        values: N tensors [m], written to.
        microbatch: whose documents.
    """
    marked = list(values)
    counted = unplace(microbatch.row.loss_mask(), microbatch.row.layout)
    for value, mask in zip(marked, counted, strict=True):
        value[torch.from_numpy(~mask)] = torch.nan
    return marked
