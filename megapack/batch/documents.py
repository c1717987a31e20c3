"""A row's documents by themselves, and a row of them in another geometry.

What is moved is a document's positions with their labels, so nothing is shifted again, and a
document whose last position has a label keeps it. Letters: m = positions of one document,
N documents, T = positions of the row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from megapack.batch.join import split_end_labels
from megapack.errors import ContractError
from megapack.layout.pack_layout import IGNORE_INDEX, PackLayout
from megapack.layout.runs import Int32, locked, runs_of_mask
from megapack.layout.token_fields import TokenField, place, unplace
from megapack.records.document import Document
from megapack.records.packed_row import PackedRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PositionedDocument:
    """One document as a model sees it.

    Attributes:
        document_id: key.
        source: name of its source.
        tokens: int32 [m], token-aligned.
        labels: int32 [m], target-aligned: the next token, or IGNORE_INDEX where masked; the last
            one may be a token that has no position.
    """

    document_id: str
    source: str
    tokens: Int32
    labels: Int32

    def __post_init__(self) -> None:
        if self.tokens.size < 1 or self.tokens.shape != self.labels.shape:
            raise ContractError(
                f"PositionedDocument {self.document_id}: expected as many labels as tokens and at "
                f"least one, found {self.tokens.size} tokens and {self.labels.size} labels."
            )
        own, following = self.labels[:-1], self.tokens[1:]
        wrong = np.flatnonzero((own != IGNORE_INDEX) & (own != following))
        if wrong.size:
            at = int(wrong[0])
            raise ContractError(
                f"PositionedDocument {self.document_id}: expected the next token {following[at]} "
                f"as label of position {at}, found {own[at]}. Labels are shifted once, before."
            )

    @property
    def num_positions(self) -> int:
        """m."""
        return int(self.tokens.size)

    @classmethod
    def of(cls, document: Document, *, most: int | None = None) -> Self:
        """A document's positions: n of n tokens, n - 1 when n is `most` + 1.

        Args:
            document: not yet shifted.
            most: longest document that a row takes; None for no limit.

        Raises:
            ContractError: the document is longer than `most` + 1 tokens.
        """
        count = document.num_tokens
        if most is not None and count > most + 1:
            raise ContractError(
                f"Document {document.document_id} has {count} tokens, expected at most {most + 1}."
            )
        count = count if most is None else min(count, most)
        return cls(
            document_id=document.document_id,
            source=document.source,
            tokens=document.tokens[:count],
            labels=document.labels(count),
        )


def documents_of(rows: Iterable[PackedRow]) -> tuple[PositionedDocument, ...]:
    """The documents of rows, in order."""
    found: list[PositionedDocument] = []
    for row in rows:
        sources = row.sources or ("",) * len(row.document_ids)
        labels = row.labels().astype(np.int32)
        found += [
            PositionedDocument(
                document_id=document_id, source=source, tokens=tokens, labels=document_labels
            )
            for document_id, source, tokens, document_labels in zip(
                row.document_ids,
                sources,
                unplace(row.tokens, row.layout),
                unplace(labels, row.layout),
                strict=True,
            )
        ]
    return tuple(found)


def lay_out(
    documents: Sequence[PositionedDocument], layout: PackLayout, *, pad_id: int = 0
) -> PackedRow:
    """A row of the documents in a geometry that was made for them.

    Args:
        documents: N documents, in segment order.
        layout: N segments of their lengths.
        pad_id: token at padding positions.

    Raises:
        ContractError: the layout is for other documents.
    """
    tokens = place(
        TokenField(name="tokens", dtype=np.int32, pad=pad_id),
        [document.tokens for document in documents],
        layout,
    )
    labels = place(
        TokenField(name="labels", dtype=np.int32, pad=IGNORE_INDEX),
        [document.labels for document in documents],
        layout,
    )
    ends = layout.slot_starts + layout.lengths - 1
    labelled = ends[labels[ends] != IGNORE_INDEX]
    inner, final = split_end_labels(
        [(int(position), int(labels[position])) for position in labelled], layout.row_length
    )
    runs = runs_of_mask(labels != IGNORE_INDEX)
    # A run ends with its document, also where the next document's first position counts.
    cuts = [position + 1 for position, _ in inner if labels[position + 1] != IGNORE_INDEX]
    return PackedRow.trusted(
        tokens=locked(tokens),
        target_runs=locked(np.sort(np.concatenate((runs, np.repeat(cuts, 2))))),
        layout=layout,
        names=(
            tuple(document.document_id for document in documents),
            tuple(document.source for document in documents),
        ),
        final_label=final,
        inner_labels=inner,
    )


def lengths_of(documents: Sequence[PositionedDocument]) -> Int32:
    """int32 [N]: positions of each document."""
    return np.array([document.num_positions for document in documents], dtype=np.int32)
