"""`RowFields`: values that travel with a row beside its tokens, and how they are cut.

Every value stands in row order, laid out by `layout.token_fields.place`, and is cut with the same
index as the tokens or the labels, so that fields cannot drift apart. Letter: T = positions of the
row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from megapack.errors import ContractError
from megapack.layout.token_fields import TokenField, place
from megapack.records.packed_row import PackedRow

AnyArray = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowFields:
    """What one row carries beside its tokens.

    Attributes:
        local: [T, ...] in row order; this rank's share becomes `MicroBatch.fields` (routed
            experts, token identities, teacher rows, MTP masks).
        model: [T, ...] in row order; laid out as the model takes its tokens and passed by keyword
            to a model that accepts it (media validity).
        media: anything else, passed as it is by keyword to a model that accepts it.
    """

    local: Mapping[str, AnyArray] = field(default_factory=dict)
    model: Mapping[str, AnyArray] = field(default_factory=dict)
    media: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def check(self, row: PackedRow) -> None:
        """Refuse a value that is not as long as the row.

        Raises:
            ContractError: with the name and both lengths.
        """
        for name, values in {**self.local, **self.model}.items():
            if values.shape[0] != row.layout.row_length:
                raise ContractError(
                    f"RowFields.{name}: expected {row.layout.row_length} positions, found "
                    f"{values.shape[0]}. Lay it out with place()."
                )


FieldSource = Callable[[PackedRow], RowFields]
"""Gives a row's fields; asked with the row in the geometry that the microbatch will have."""

NO_FIELDS = RowFields()


def no_fields(row: PackedRow) -> RowFields:
    """The source of rows that carry nothing else."""
    return NO_FIELDS


def by_document(field_: TokenField, values: Mapping[str, AnyArray], row: PackedRow) -> AnyArray:
    """Lay values that are known by document into a row, whatever its geometry.

    Args:
        field_: name, dtype, pad rule.
        values: document id -> [m, ...], m positions of the document.
        row: the row.

    Returns:
        [T, ...] in row order.

    Raises:
        ContractError: a document of the row has no value, or one of another length.
    """
    missing = [one for one in row.document_ids if one not in values]
    if missing:
        raise ContractError(
            f"{field_.name}: expected values of all {len(row.document_ids)} documents, found none "
            f"of {len(missing)}, the first {missing[0]}."
        )
    return place(field_, [values[one] for one in row.document_ids], row.layout)


def to_tensors(
    values: Mapping[str, AnyArray], cut: Callable[[AnyArray], AnyArray], device: torch.device
) -> dict[str, torch.Tensor]:
    """Cut every value alike and bring it to the device, in its own dtype.

    Args:
        values: [T, ...] each.
        cut: takes the positions of this rank and gives them the microbatch's leading shape.
        device: where to.
    """
    return {
        name: torch.from_numpy(np.ascontiguousarray(cut(array))).to(device)
        for name, array in values.items()
    }


def stacked(values: Sequence[AnyArray], width: int, fill: int) -> AnyArray:
    """[B, width, ...]: arrays of unequal length beside one another.

    Args:
        values: B arrays [m, ...] with m <= width.
        width: S.
        fill: what stands behind each.
    """
    first = values[0]
    out = np.full((len(values), width, *first.shape[1:]), fill, dtype=first.dtype)
    for i, array in enumerate(values):
        out[i, : array.shape[0]] = array
    return out
