"""`RowArrays`: what one packed row feeds to a model, in narrow dtypes and reusable memory.

Costs about as much as copying the arrays twice (4-5 ns a position); int32 and uint8 are what
should cross to a device, where widening to int64 and float32 is free. Letters: N segments,
T = row_length.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError
from megapack.layout.pack_layout import PackLayout
from megapack.layout.runs import Int32, fill_runs

UInt8 = npt.NDArray[np.uint8]


@dataclass(slots=True, kw_only=True, eq=False)
class RowArrays:
    """One row's arrays; `fill` writes the next row into the same memory.

    Attributes:
        tokens: int32 [T], token-aligned.
        labels: int32 [T], target-aligned, IGNORE_INDEX where masked.
        loss_mask: uint8 [T], target-aligned: 1 where the label counts.
        position_ids: int32 [T], token-aligned: restart at 0 at each slot.
        cu_seqlens: int32 [N+1], cumulated real lengths.
        cu_seqlens_padded: int32 [N+1], offsets of the slots into the row.
        max_seqlen: longest slot.
    """

    tokens: Int32
    labels: Int32
    loss_mask: UInt8
    position_ids: Int32
    cu_seqlens: Int32
    cu_seqlens_padded: Int32
    max_seqlen: int

    @classmethod
    def empty(cls, row_length: int) -> Self:
        """Memory for rows of `row_length` positions."""
        none = np.zeros(1, dtype=np.int32)
        return cls(
            tokens=np.empty(row_length, dtype=np.int32),
            labels=np.empty(row_length, dtype=np.int32),
            loss_mask=np.empty(row_length, dtype=np.uint8),
            position_ids=np.empty(row_length, dtype=np.int32),
            cu_seqlens=none,
            cu_seqlens_padded=none,
            max_seqlen=0,
        )

    def fill(
        self,
        layout: PackLayout,
        tokens: Int32,
        target_runs: Int32,
        *,
        final_label: int | None = None,
    ) -> None:
        """Write one row.

        Args:
            layout: the row's geometry.
            tokens: int32 [T].
            target_runs: int32 [2R], target-aligned.
            final_label: label of position T-1, see `PackLayout.labels`.

        Raises:
            ContractError: these arrays are for rows of another length.
        """
        if self.tokens.size != layout.row_length:
            raise ContractError(
                f"RowArrays: expected a row of {self.tokens.size} positions, found one of "
                f"{layout.row_length}."
            )
        np.copyto(self.tokens, tokens)
        layout.fill_labels(tokens, target_runs, out=self.labels, final_label=final_label)
        self.loss_mask[:] = fill_runs(target_runs, layout.row_length, off=False, on=True)
        layout.fill_position_ids(self.position_ids)
        self.cu_seqlens = layout.cu_seqlens
        self.cu_seqlens_padded = layout.cu_seqlens_padded
        self.max_seqlen = layout.max_seqlen
