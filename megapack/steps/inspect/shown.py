"""What is shown: documents with the tokens that are trained, whatever table they came from.

Everything is token-aligned here: token i is trained when the *label* of position i - 1 is token i
and counts. Marking labels instead of positions is what lets a person read the marked text as what
the model is asked to say. Letter: n tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from megapack.layout.runs import Bool, Int32, mask_of_runs
from megapack.records.document import Document
from megapack.records.packed_row import PackedRow
from megapack.steps.inspect.opinion import TeacherView


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where a document stands in a row.

    Attributes:
        start: position of its first token.
        length: positions of the slot, padding included.
        positions: positions that hold its tokens.
    """

    start: int
    length: int
    positions: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownDocument:
    """One document.

    Attributes:
        document_id: its id.
        source: name of its source.
        place: file and line it came from, "" when not known.
        tokens: int32 [n]; with a last one that holds no position, when it is only a label.
        trained: bool [n], token-aligned: True where a label that counts is this token.
        slot: where it stands in its row, None in a documents table.
        teacher: what a teacher says of it, None when nobody asked or it says nothing.
    """

    document_id: str
    source: str
    place: str = ""
    tokens: Int32
    trained: Bool
    slot: Slot | None = None
    teacher: TeacherView | None = None

    @property
    def num_trained(self) -> int:
        """Tokens that are trained."""
        return int(np.count_nonzero(self.trained))

    @property
    def label_only(self) -> bool:
        """Whether the last token holds no position and is only the label of the one before."""
        return self.slot is not None and self.slot.positions < self.tokens.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Documents that are shown under one heading: those of a row, or one chosen by itself.

    Attributes:
        title: the heading.
        documents: in order.
    """

    title: str
    documents: tuple[ShownDocument, ...]


def segment_of_row(row: PackedRow, segment: int) -> ShownDocument:
    """One document of a packed row.

    Args:
        row: the row.
        segment: which of its documents, in [0, N).
    """
    start = int(row.layout.slot_starts[segment])
    length = int(row.layout.lengths[segment])
    tokens = row.tokens[start : start + length]
    # The mask is over positions; what a position trains is the token after it.
    counted = row.loss_mask()[start : start + length]
    trained = np.concatenate(([False], counted[:-1]))
    if row.final_label is not None and start + length == row.layout.row_length:
        tokens = np.append(tokens, np.int32(row.final_label))
        trained = np.append(trained, counted[-1])
    return ShownDocument(
        document_id=row.document_ids[segment],
        source=row.sources[segment] if row.sources else "",
        tokens=tokens,
        trained=trained,
        slot=Slot(start=start, length=int(row.layout.padded_lengths[segment]), positions=length),
    )


def shown_document(document: Document) -> ShownDocument:
    """A document of the tokenize step."""
    piece = f", piece {document.piece}" if document.piece else ""
    return ShownDocument(
        document_id=document.document_id,
        source=document.source,
        place=f"{place_of(document.uri, document.line)}{piece}",
        tokens=document.tokens,
        trained=mask_of_runs(document.target_runs, document.num_tokens),
    )


def place_of(uri: str, line: int) -> str:
    """File and line as editors count it."""
    return f"{uri}:{line + 1}"


def with_places(group: Group, places: Mapping[str, str]) -> Group:
    """The group with the places of those of its documents that are known."""
    documents = tuple(
        replace(one, place=places.get(one.document_id, "")) for one in group.documents
    )
    return replace(group, documents=documents)
