"""`ThdRow`: a packed row as a megatron-core training loop consumes it, in numpy.

Everything is this context parallel rank's share of the row in its local order; the offsets are
those of the whole row, as megatron-core wants them. Nothing after it shifts or masks again.
Letters: T = row_length, N segments, M padding segments that cover the tail.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megapack.layout.runs import Bool, Int32, Int64
from megapack.layout.tail import covering_offsets
from megapack.records.packed_row import PackedRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ThdRow:
    """One row, or one context parallel rank's share of it.

    Attributes:
        tokens: int64 [T/cp], token-aligned.
        labels: int64 [T/cp], target-aligned: the next token where it counts, IGNORE_INDEX (-100)
            elsewhere.
        loss_mask: float32 [T/cp], target-aligned: 1 where the label counts. Multiply the token
            loss by it: megatron-core's fused cross-entropy gives ignored labels a loss too.
        position_ids: int64 [T/cp], restarting at 0 in every slot.
        padding_mask: bool [T/cp], True at padding.
        cu_seqlens: int32 [N+M+1], cumulated real lengths. Not offsets into the row.
        cu_seqlens_padded: int32 [N+M+1], offsets into the whole row, from 0 to T.
        max_seqlen: longest slot, in positions.
        row_length: T.
        document_ids: N ids, in segment order; none for a filler row.
    """

    tokens: Int64
    labels: Int64
    loss_mask: npt.NDArray[np.float32]
    position_ids: Int64
    padding_mask: Bool
    cu_seqlens: Int32
    cu_seqlens_padded: Int32
    max_seqlen: int
    row_length: int
    document_ids: tuple[str, ...]

    @property
    def is_filler(self) -> bool:
        """Whether the row holds no document: it weighs nothing, and only keeps ranks in step."""
        return not self.document_ids

    def packed_seq_params(self) -> dict[str, Any]:
        """Keyword arguments of megatron-core's `PackedSeqParams`; offsets are numpy arrays."""
        return {
            "qkv_format": "thd",
            "cu_seqlens_q": self.cu_seqlens,
            "cu_seqlens_kv": self.cu_seqlens,
            "cu_seqlens_q_padded": self.cu_seqlens_padded,
            "cu_seqlens_kv_padded": self.cu_seqlens_padded,
            "max_seqlen_q": self.max_seqlen,
            "max_seqlen_kv": self.max_seqlen,
            "total_tokens": self.row_length,
        }


def thd_row(row: PackedRow, *, cp_size: int = 1, cp_rank: int = 0) -> ThdRow:
    """A row as megatron-core takes it.

    Args:
        row: a packed row, or a filler row.
        cp_size: ranks that share the row.
        cp_rank: this one.

    Raises:
        ConfigError: the row cannot be cut for this context parallel size.
    """
    layout = row.layout
    index = layout.cp_index(cp_size=cp_size, cp_rank=cp_rank)
    covering = covering_offsets(layout)
    return ThdRow(
        tokens=row.tokens.astype(np.int64)[index],
        labels=row.labels()[index],
        loss_mask=row.loss_mask().astype(np.float32)[index],
        position_ids=layout.position_ids()[index],
        padding_mask=layout.padding_mask()[index],
        cu_seqlens=covering.real,
        cu_seqlens_padded=covering.padded,
        max_seqlen=covering.longest,
        row_length=layout.row_length,
        document_ids=row.document_ids,
    )
