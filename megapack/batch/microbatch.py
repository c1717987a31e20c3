"""`MicroBatch`: what one forward consumes on one rank.

Two sides. The *model's side* is what the model takes: `tokens`, `position_ids`, `inputs` and the
attention's own tensors. The *local side* is where this rank's outputs stand: `labels`,
`loss_mask`, `padding_mask` and `fields`; a last stage's output has one entry for each of its
positions, in `labels.reshape(-1)` order. Both have one shape, except for models that pack or cut
by themselves.

Whatever the kind, `row` says which documents stand where, in the order of the gathered output:
a dense batch is a row whose slots are S long, several rows are joined to one.
Letters: B rows, S width of a dense batch, T positions of `row`, cp = context parallel size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from megapack.errors import ContractError
from megapack.layout.pack_layout import PackLayout
from megapack.records.packed_row import PackedRow

if TYPE_CHECKING:
    from megatron.core.packed_seq_params import PackedSeqParams

AnyArray = npt.NDArray[Any]
Shape = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ThdAttention:
    """A packed row, cut to this rank's share by context parallelism.

    Attributes:
        layout: geometry of the whole row.
        cp_index: int64 [T/cp], CPU: row positions of this rank, in local order.
        packed_seq_params: offsets as megatron-core wants them; global, not divided by cp.
    """

    layout: PackLayout
    cp_index: torch.Tensor
    packed_seq_params: "PackedSeqParams"

    @property
    def model_shape(self) -> Shape:
        """Leading shape of what the model takes: [1, T/cp]."""
        return (1, self.cp_index.numel())

    @property
    def local_shape(self) -> Shape:
        """Leading shape of labels: [1, T/cp]."""
        return (1, self.cp_index.numel())

    def local(self, values: AnyArray) -> AnyArray:
        """[T, ...] in row order to [1, T/cp, ...]: this rank's share."""
        return _share(values, self.cp_index)

    def model(self, values: AnyArray) -> AnyArray:
        """[T, ...] in row order to [1, T/cp, ...]: as the model takes its tokens."""
        return _share(values, self.cp_index)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FullRowAttention:
    """A packed row for a model that inserts media and cuts for context parallelism by itself.

    The model takes the whole row; its outputs are cp-local.

    Attributes:
        layout: geometry of the whole row.
        cp_index: int64 [T/cp], CPU: row positions of this rank's outputs, in local order.
        packed_seq_params: offsets; global.
    """

    layout: PackLayout
    cp_index: torch.Tensor
    packed_seq_params: "PackedSeqParams"

    @property
    def model_shape(self) -> Shape:
        """Leading shape of what the model takes: [1, T]."""
        return (1, self.layout.row_length)

    @property
    def local_shape(self) -> Shape:
        """Leading shape of labels: [1, T/cp]."""
        return (1, self.cp_index.numel())

    def local(self, values: AnyArray) -> AnyArray:
        """[T, ...] in row order to [1, T/cp, ...]: this rank's share."""
        return _share(values, self.cp_index)

    def model(self, values: AnyArray) -> AnyArray:
        """[T, ...] in row order to [1, T, ...]: as the model takes its tokens."""
        return values[None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DenseAttention:
    """A rectangle of one document a row.

    Attributes:
        layout: geometry of the rectangle laid end to end: slots of S, filler rows in the tail.
        attention_mask: bool [B, 1, S, S], True where a query may *not* see a key (megatron-core's
            polarity); its rows may share memory.
        lengths: int32 [B], on the host: real positions; 0 for a filler row.
    """

    layout: PackLayout
    attention_mask: torch.Tensor
    lengths: torch.Tensor

    @property
    def model_shape(self) -> Shape:
        """Leading shape of what the model takes: [B, S]."""
        return (self.attention_mask.shape[0], self.attention_mask.shape[-1])

    @property
    def local_shape(self) -> Shape:
        """Leading shape of labels: [B, S]."""
        return self.model_shape

    def local(self, values: AnyArray) -> AnyArray:
        """[T, ...] in row order to [B, S, ...]."""
        shaped: AnyArray = values.reshape(*self.model_shape, *values.shape[1:])
        return shaped

    def model(self, values: AnyArray) -> AnyArray:
        """[T, ...] in row order to [B, S, ...]: as the model takes its tokens."""
        return self.local(values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelfPackedAttention:
    """A rectangle for a model that packs and cuts by itself.

    The model's outputs stand as in `layout`, cut for context parallelism.

    Attributes:
        layout: the packed view; slots are what the model makes of the mask.
        attention_mask: bool [B, S], True at *valid* tokens. The last item is valid to the row's
            end where a fixed length asks for it; the loss masks what is not a document.
        cp_index: int64 [T/cp], CPU: row positions of this rank's outputs, in local order.
        packed_seq_params: offsets of the packed view; global.
    """

    layout: PackLayout
    attention_mask: torch.Tensor
    cp_index: torch.Tensor
    packed_seq_params: "PackedSeqParams"

    @property
    def model_shape(self) -> Shape:
        """Leading shape of what the model takes: [B, S]."""
        return (self.attention_mask.shape[0], self.attention_mask.shape[1])

    @property
    def local_shape(self) -> Shape:
        """Leading shape of labels: [1, T/cp]."""
        return (1, self.cp_index.numel())

    def local(self, values: AnyArray) -> AnyArray:
        """[T, ...] in row order to [1, T/cp, ...]: this rank's share."""
        return _share(values, self.cp_index)

    def model(self, values: AnyArray) -> AnyArray:
        """[T, ...] in row order to [B, S, ...], zero behind each item's slot."""
        starts = self.layout.slot_starts if self.layout.num_segments else np.zeros(1, np.int32)
        slots = np.diff(np.append(starts, self.layout.row_length))
        slots[: self.layout.num_segments] = self.layout.padded_lengths
        places = np.arange(self.model_shape[1])
        inside = places < slots[:, None]
        taken = values[np.where(inside, starts[:, None] + places, 0)]
        taken[~inside] = 0
        return taken


Attention = ThdAttention | DenseAttention | SelfPackedAttention | FullRowAttention


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """One forward's tensors on this rank, all on the context's device.

    m = the attention's model_shape, l = its local_shape; equal but for self-packing and full-row
    models.

    Attributes:
        tokens: int64 m, token-aligned.
        labels: int64 l, target-aligned, -100 where masked.
        loss_mask: float32 l, target-aligned: 1 where the label counts.
        position_ids: int64 m, token-aligned: restart at 0 at each document.
        padding_mask: bool l, token-aligned: True at padding.
        row_mask: float32 [1], or [B] of a rectangle: 0 for a filler row, 1 otherwise.
        attention: boundaries; its type is the kind of the microbatch.
        row: the whole row on the host, for what is keyed by document.
        fields: further values with leading shape l.
        inputs: further values for models that accept them, by keyword: token-aligned ones with
            leading shape m, and media of any shape.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    position_ids: torch.Tensor
    padding_mask: torch.Tensor
    row_mask: torch.Tensor
    attention: Attention
    row: PackedRow
    fields: Mapping[str, torch.Tensor] = field(default_factory=dict)
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        taken, local = self.attention.model_shape, self.attention.local_shape
        for name in ("tokens", "position_ids"):
            _check_shape(name, getattr(self, name), taken)
        named = {name: getattr(self, name) for name in ("labels", "loss_mask", "padding_mask")}
        for name, tensor in {**named, **self.fields}.items():
            _check_shape(name, tensor, local)

    @property
    def document_ids(self) -> tuple[str, ...]:
        """Ids of the row's N documents, in segment order."""
        return self.row.document_ids


def _share(values: AnyArray, index: torch.Tensor) -> AnyArray:
    # Without context parallelism the share is the row.
    mine: AnyArray = values if index.numel() == values.shape[0] else values[index.numpy()]
    return mine[None]


def _check_shape(name: str, tensor: torch.Tensor, shape: Shape) -> None:
    if tuple(tensor.shape[:2]) != shape:
        raise ContractError(
            f"MicroBatch.{name}: expected leading shape {shape}, found {tuple(tensor.shape)}."
        )
