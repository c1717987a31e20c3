"""What the tokenize step made of conversations: documents, drops and counts."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter

from megapack.records.document import Document
from megapack.records.drops import Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeCounts:
    """What the tokenize step did, for the report.

    Attributes:
        conversations: came in.
        kept: left as one or more documents.
        documents: documents made; pieces count each.
        tokens: tokens of all documents.
        target_tokens: supervised tokens of all documents.
        split_conversations: kept as pieces.
        dropped_pieces: drops among them for exchanges that are in no piece of a kept conversation.
        left_out_exchanges: exchanges left out in front of a last turn that trains alone.
        lost_tokens: tokens of kept conversations that are in no document.
        lost_target_tokens: supervised tokens among them.
        truncated_documents: documents whose end was cut off.
        lossy_documents: kept although the format lost something.
        typed_control_documents: documents in which people typed control tokens.
    """

    conversations: int = 0
    kept: int = 0
    documents: int = 0
    tokens: int = 0
    target_tokens: int = 0
    split_conversations: int = 0
    dropped_pieces: int = 0
    left_out_exchanges: int = 0
    lost_tokens: int = 0
    lost_target_tokens: int = 0
    truncated_documents: int = 0
    lossy_documents: int = 0
    typed_control_documents: int = 0

    def plus(self, other: "TokenizeCounts") -> "TokenizeCounts":
        """Sum."""
        return TokenizeCounts.total((self, other))

    @classmethod
    def total(cls, counts: Iterable["TokenizeCounts"]) -> "TokenizeCounts":
        """Sum of any number."""
        columns = zip(*map(_values, counts), strict=True)
        return cls(**dict(zip(_NAMES, map(sum, columns), strict=False)))

    def as_json(self) -> dict[str, int]:
        """Plain dictionary."""
        return dict(zip(_NAMES, _values(self), strict=True))


_NAMES = tuple(field.name for field in fields(TokenizeCounts))
_values = attrgetter(*_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of conversations.

    Attributes:
        documents: in the order of the conversations.
        formats: prompt format of each document.
        drops: one for each conversation without a document.
        counts: sums.
    """

    documents: tuple[Document, ...] = ()
    formats: tuple[str, ...] = ()
    drops: tuple[Drop, ...] = ()
    counts: TokenizeCounts = TokenizeCounts()
