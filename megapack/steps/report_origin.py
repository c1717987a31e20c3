"""What the tokenize step did to the conversations of a dataset, as its tables recorded it."""

from collections import Counter
from dataclasses import dataclass, fields

from megapack.errors import MegapackError
from megapack.records.refs import DatasetRef
from megapack.steps.tables import committed
from megapack.steps.wording import counted
from megapack.store.versions import read_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Counts of the tokenize step, named as in `TokenizeCounts`.

    Attributes:
        conversations: conversations that were tokenized.
        split_conversations: kept in several pieces.
        dropped_pieces: exchanges in no piece of a split conversation, which are among the drops.
        left_out_exchanges: exchanges left out in front of a last turn that trains alone.
        lost_tokens: tokens of kept conversations that are in no document.
        target_tokens: trained tokens of all documents.
        lost_target_tokens: trained tokens of kept conversations that are in no document.
        truncated_documents: documents whose end was cut off.
        lossy_documents: kept although the format lost something.
        typed_control_documents: documents in which people typed control tokens.
    """

    conversations: int = 0
    split_conversations: int = 0
    dropped_pieces: int = 0
    left_out_exchanges: int = 0
    lost_tokens: int = 0
    target_tokens: int = 0
    lost_target_tokens: int = 0
    truncated_documents: int = 0
    lossy_documents: int = 0
    typed_control_documents: int = 0

    def sentences(self) -> list[str]:
        """One for each thing that happened."""
        told = (
            (self.split_conversations, "long conversation", "split into pieces"),
            (self.truncated_documents, "document", "cut off at the end"),
            (self.dropped_pieces, "exchange", "in no piece of those: dropped, see below"),
            (self.left_out_exchanges, "exchange", "left out in front of a last answer"),
            (self.lost_tokens, "token", "of kept conversations in no document"),
            (self.lossy_documents, "document", "kept although the format cannot say all of it"),
            (self.typed_control_documents, "document", "with control tokens typed by people"),
        )
        return [f"{counted(count, noun)} {what}" for count, noun, what in told if count]


def origin(ref: DatasetRef) -> Origin | None:
    """Counts over all tables that a dataset was packed from; None when one of them is gone.

    Raises:
        StoreError: the dataset itself cannot be read.
    """
    totals: Counter[str] = Counter()
    for uri, digest in committed(ref).manifest.parents.items():
        try:
            table = read_version(uri).manifest
        except MegapackError:
            return None
        if table.digest != digest:
            return None
        if table.kind == "documents":
            totals.update(table.counts)
    if not totals["conversations"]:
        return None
    return Origin(**{field.name: totals[field.name] for field in fields(Origin)})
