"""`HostDocuments`: values of a row's positions, moved to the host by chunks, document by document.

Context parallelism is undone on the way: each chunk is gathered on the writing rank, leaves the
device, and is laid into arrays of the documents' real lengths. No tensor of the whole row is
made, on no device. Letters: N documents, T positions of the row, n = T/cp of this rank, c of a
chunk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from megapack.layout.pack_layout import PackLayout
from megapack.parallel.collectives import gather_first_dim, row_order
from megapack.parallel.context import ParallelContext

AnyArray = npt.NDArray[Any]
_PADDING = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostDocuments:
    """Collects columns of a microbatch's positions.

    Attributes:
        layout: the row.
        context: this rank.
        places: int64 [cp, n]: row position of each of the cp ranks' positions.
        owner: int64 [T]: document of each row position, -1 at padding.
        columns: by name: N byte arrays [m, bytes] and their dtype; on the writing rank only.
    """

    layout: PackLayout
    context: ParallelContext
    places: npt.NDArray[np.int64]
    owner: npt.NDArray[np.int64]
    columns: dict[str, tuple[list[npt.NDArray[np.uint8]], np.dtype[Any]]] = field(
        default_factory=dict
    )

    @classmethod
    def of(cls, layout: PackLayout, context: ParallelContext) -> Self:
        """Nothing collected yet."""
        owner = layout.segment_ids().astype(np.int64)
        owner[layout.padding_mask()] = _PADDING
        cp = context.sizes.cp
        places = row_order(layout, cp).numpy() if cp > 1 else np.arange(layout.row_length)
        return cls(layout=layout, context=context, places=places.reshape(cp, -1), owner=owner)

    def add(self, part: slice, columns: Mapping[str, torch.Tensor]) -> None:
        """Collective over cp_group: take a chunk. Ranks with another tp_rank than 0 do nothing.

        Args:
            part: positions of this rank; all ranks of the group take the same.
            columns: by name, [c] or [c, width]; the same names and dtypes in every chunk.
        """
        if self.context.tp_rank != 0:
            return
        raw = [_bytes(column) for column in columns.values()]
        gathered = gather_first_dim(torch.cat(raw, dim=1), self.context.cp_group)
        if gathered is None:
            return
        host = gathered.cpu().numpy()
        places, begin = self.places[:, part].reshape(-1), 0
        for (name, column), own in zip(columns.items(), raw, strict=True):
            end = begin + own.shape[1]
            self._lay(name, host[:, begin:end], places, numpy_dtype(column.dtype))
            begin = end

    def _lay(
        self,
        name: str,
        values: npt.NDArray[np.uint8],
        places: npt.NDArray[np.int64],
        dtype: np.dtype[Any],
    ) -> None:
        if name not in self.columns:
            lengths = self.layout.lengths.tolist()
            empty = [np.empty((length, values.shape[1]), np.uint8) for length in lengths]
            self.columns[name] = empty, dtype
        documents, _ = self.columns[name]
        owner, starts = self.owner[places], self.layout.slot_starts
        for document in np.unique(owner[owner != _PADDING]).tolist():
            here = owner == document
            documents[document][places[here] - starts[document]] = values[here]

    def take(self, name: str) -> list[AnyArray]:
        """N arrays [m, width] of a column, C order; of width 1 where it came as [c].

        On the writing rank, once all chunks are there. bfloat16 comes as its uint16 bits.
        """
        documents, dtype = self.columns.pop(name)
        return [document.view(dtype) for document in documents]


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy dtype that carries a torch dtype; uint16 for bfloat16."""
    if dtype is torch.bfloat16:
        return np.dtype(np.uint16)
    return torch.empty((), dtype=dtype).numpy().dtype


def _bytes(column: torch.Tensor) -> torch.Tensor:
    """uint8 [c, bytes of a position]."""
    return column.detach().reshape(column.shape[0], -1).contiguous().view(torch.uint8)
