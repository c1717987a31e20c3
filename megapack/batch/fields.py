"""Values that travel with a row beside its tokens, and how they are cut.

Every value stands in row order, laid out by `layout.token_fields.place`, and is cut as the tokens
or the labels are, by the microbatch's own attention, so that fields cannot drift apart.
Letter: T = positions of the row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from megapack.batch.microbatch import AnyArray, MicroBatch
from megapack.errors import ContractError
from megapack.layout.token_fields import TokenField, place
from megapack.records.packed_row import PackedRow


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


def carry(microbatch: MicroBatch, fields: RowFields) -> MicroBatch:
    """The microbatch with further values, cut as its own are, on its device.

    Args:
        microbatch: of this rank.
        fields: values of `microbatch.row`.

    Raises:
        ContractError: a value is not as long as the row.
    """
    attention, device = microbatch.attention, microbatch.tokens.device
    length = microbatch.row.layout.row_length
    for name, values in {**fields.local, **fields.model}.items():
        if values.shape[0] != length:
            raise ContractError(
                f"RowFields.{name}: expected {length} positions, found {values.shape[0]}. Lay it "
                "out with place()."
            )
    return replace(
        microbatch,
        fields={**microbatch.fields, **_to_tensors(fields.local, attention.local, device)},
        inputs={
            **microbatch.inputs,
            **_to_tensors(fields.model, attention.model, device),
            **{name: value.to(device) for name, value in fields.media.items()},
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttachFields:
    """A stage of `StepBatch.stages`: gives each microbatch the fields of its documents.

    Attributes:
        source: asked with the row in the geometry that the microbatch has.
    """

    source: Callable[[PackedRow], RowFields]

    def __call__(self, microbatch: MicroBatch) -> MicroBatch:
        """The microbatch with the source's fields."""
        return carry(microbatch, self.source(microbatch.row))


def by_document(spec: TokenField, values: Mapping[str, AnyArray], row: PackedRow) -> AnyArray:
    """Lay values that are known by document into a row, whatever its geometry.

    Args:
        spec: name, dtype, pad rule.
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
            f"{spec.name}: expected values of all {len(row.document_ids)} documents, found none "
            f"of {len(missing)}, the first {missing[0]}."
        )
    return place(spec, [values[one] for one in row.document_ids], row.layout)


def _to_tensors(
    values: Mapping[str, AnyArray], cut: Callable[[AnyArray], AnyArray], device: torch.device
) -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(np.ascontiguousarray(cut(array))).to(device)
        for name, array in values.items()
    }
