"""Packing documents that come unpacked, at run time, and unpacking what a model made of them.

For callers that hold arrays instead of a prepared dataset: `[B, S]` ids with lengths, or lists of
tokens. Lengths that a run needs (2*cp for every slot; cp, tp and a kernel's divisor for the row; a
constant length for pipeline stages) go into a `Granularity` and a row length; padding is part of
the layout alone, so `unpack` returns what was packed, whatever was added. Letters: B items,
S their width, N documents, T positions of the row.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from megapack.batch.documents import PositionedDocument, lay_out, lengths_of
from megapack.errors import ConfigError, DataError
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import PackLayout, padded_lengths
from megapack.layout.runs import runs_of_mask
from megapack.records.document import Document
from megapack.records.packed_row import PackedRow


def runtime_layout(
    lengths: npt.ArrayLike, granularity: Granularity, *, row_length: int | None = None
) -> PackLayout:
    """The geometry of documents that are packed into one row.

    Args:
        lengths: int [N], positions of each document.
        granularity: multiples, from `layout.granularity.granularity`.
        row_length: T where it must be constant; None for the shortest that the multiples allow.

    Raises:
        ConfigError: `row_length` is off the multiples, or too short for the documents.
    """
    flat = np.asarray(lengths, dtype=np.int32)
    used = int(padded_lengths(flat, granularity.segment).sum(dtype=np.int64))
    if row_length is None:
        steps = max(-(-used // granularity.row), 1)
        return PackLayout(row_length=steps * granularity.row, lengths=flat, granularity=granularity)
    granularity.check_row_length(row_length, where="runtime_layout: row_length")
    if used > row_length:
        raise ConfigError(
            f"runtime_layout: {flat.size} documents need {used} positions, expected at most "
            f"row_length = {row_length}. Raise row_length, or pack fewer documents into a row."
        )
    return PackLayout(row_length=row_length, lengths=flat, granularity=granularity)


def pack_documents(
    documents: Sequence[PositionedDocument],
    granularity: Granularity,
    *,
    row_length: int | None = None,
    pad_id: int = 0,
) -> PackedRow:
    """One row of the documents, in order.

    Args:
        documents: N documents.
        granularity: multiples that the run needs.
        row_length: T where it must be constant.
        pad_id: token at padding positions.

    Raises:
        ConfigError: the documents do not fit `row_length`.
    """
    layout = runtime_layout(lengths_of(documents), granularity, row_length=row_length)
    return lay_out(documents, layout, pad_id=pad_id)


def documents_of_batch(
    tokens: npt.NDArray[Any] | Sequence[npt.NDArray[Any]],
    lengths: npt.ArrayLike,
    *,
    token_mask: npt.NDArray[Any] | Sequence[npt.NDArray[Any]] | None = None,
    sample_mask: npt.ArrayLike | None = None,
    document_ids: Sequence[str] | None = None,
) -> tuple[Document, ...]:
    """The items of a batch that was padded on the right.

    Args:
        tokens: int [B, S], or B arrays of at least `lengths` tokens.
        lengths: int [B], tokens of each item.
        token_mask: [B, S], token-aligned: 1 at tokens that are supervised; all by default. The
            first token of an item never is: nothing stands before it.
        sample_mask: [B], 0 for items that weigh nothing.
        document_ids: B keys; the item's number by default.

    Raises:
        DataError: an item is empty or shorter than its length says, or a mask has other values
            than 0 and 1.
    """
    counts = np.asarray(lengths, dtype=np.int64)
    weighs = np.ones(counts.size) if sample_mask is None else np.asarray(sample_mask)
    found = []
    for i, count in enumerate(counts.tolist()):
        item = np.asarray(tokens[i], dtype=np.int32).reshape(-1)
        if not 1 <= count <= item.size:
            raise DataError(
                f"item {i}: expected a length in [1, {item.size}], found {count}. Correct the "
                "lengths, or leave empty items out."
            )
        mask = np.ones(count) if token_mask is None else np.array(token_mask[i][:count])
        mask[0] = 0
        found.append(
            Document(
                document_id=f"{i:032x}" if document_ids is None else document_ids[i],
                tokens=item[:count],
                target_runs=runs_of_mask(mask if weighs[i] else np.zeros(count)),
            )
        )
    return tuple(found)


def unpack(values: torch.Tensor, layout: PackLayout, *, width: int | None = None) -> torch.Tensor:
    """Bring a row's values back to one item a row: the inverse of packing.

    Args:
        values: [T, ...] in row order, on any device.
        layout: geometry of the row.
        width: S, at least the longest document; the longest by default.

    Returns:
        [N, S, ...] on the same device, zero behind each document.

    Raises:
        ConfigError: a document is longer than the width.
    """
    longest = int(layout.lengths.max(initial=0))
    size = longest if width is None else width
    if size < longest:
        raise ConfigError(
            f"unpack: a document has {longest} positions, expected at most width = {size}. Use "
            "the width that the items had."
        )
    offsets = np.arange(size, dtype=np.int64)
    real = offsets < layout.lengths[:, None]
    index = np.where(real, layout.slot_starts[:, None] + offsets, 0)
    taken = values[torch.from_numpy(index).to(values.device)]
    keep = torch.from_numpy(real).to(values.device)
    return torch.where(
        keep.reshape(*keep.shape, *[1] * (values.dim() - 1)), taken, torch.zeros_like(taken)
    )
