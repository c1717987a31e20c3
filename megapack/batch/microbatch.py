"""`MicroBatch`: what one forward consumes on one rank.

THD: one packed row, cut to this rank's share by context parallelism. Letters: T = row_length,
cp = context parallel size, N = segments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from megapack.errors import ContractError
from megapack.layout.pack_layout import PackLayout
from megapack.records.packed_row import PackedRow

if TYPE_CHECKING:
    from megatron.core.packed_seq_params import PackedSeqParams


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ThdAttention:
    """How attention is bounded in a packed row.

    Attributes:
        layout: geometry of the whole row.
        cp_index: int64 [T/cp], CPU: row positions of this rank, in local order.
        packed_seq_params: offsets as megatron-core wants them; global, not divided by cp.
    """

    layout: PackLayout
    cp_index: torch.Tensor
    packed_seq_params: "PackedSeqParams"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """One row's tensors on this rank, all on the context's device.

    Attributes:
        tokens: int64 [1, T/cp], token-aligned.
        labels: int64 [1, T/cp], target-aligned, -100 where masked.
        loss_mask: float32 [1, T/cp], target-aligned: 1 where the label counts.
        position_ids: int64 [1, T/cp], token-aligned: restart at 0 at each slot.
        padding_mask: bool [1, T/cp], token-aligned: True at padding.
        row_mask: float32 [1]: 0 for a filler row, 1 otherwise.
        attention: boundaries.
        row: the whole row on the host, for what is keyed by document.
        fields: further values with the same leading shape [1, T/cp].
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    position_ids: torch.Tensor
    padding_mask: torch.Tensor
    row_mask: torch.Tensor
    attention: ThdAttention
    row: PackedRow
    fields: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = (1, self.attention.cp_index.numel())
        named = {
            name: getattr(self, name)
            for name in ("tokens", "labels", "loss_mask", "position_ids", "padding_mask")
        }
        for name, tensor in {**named, **self.fields}.items():
            if tuple(tensor.shape[:2]) != shape:
                raise ContractError(
                    f"MicroBatch.{name}: expected leading shape {shape}, found "
                    f"{tuple(tensor.shape)}."
                )

    @property
    def document_ids(self) -> tuple[str, ...]:
        """Ids of the row's N documents, in segment order."""
        return self.row.document_ids
