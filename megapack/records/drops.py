"""Why documents did not make it: reasons, counts, and the law that nothing is lost.

A `Drop` is one rejected record, kept with its place and the message a person can act on. A
`DropLedger` counts them. `check_conservation` is the law: in = placed + dropped.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from megapack.errors import ContractError


class DropReason(StrEnum):
    """Every way in which a document can be left out."""

    UNREADABLE = "unreadable"
    UNKNOWN_SHAPE = "unknown_shape"
    UNKNOWN_ROLE = "unknown_role"
    BAD_ROLE_ORDER = "bad_role_order"
    EMPTY = "empty"
    DUPLICATE = "duplicate"
    TEMPLATE_ERROR = "template_error"
    LOSSY_FORMAT = "lossy_format"
    MASK_UNKNOWN = "mask_unknown"
    MISSING_SPECIAL_TOKEN = "missing_special_token"
    NOTHING_SUPERVISED = "nothing_supervised"
    TOO_LONG = "too_long"
    LONGER_THAN_ROW = "longer_than_row"
    LEFT_OUT_BY_BLEND = "left_out_by_blend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """One document that was left out.

    Attributes:
        reason: why.
        detail: expected, found, what to change.
        uri: file it was read from.
        line: record number in that file, counted from 0.
        document_id: its id when it had one, else "".
        tokens: its tokens when they were known, else 0.
    """

    reason: DropReason
    detail: str
    uri: str = ""
    line: int = 0
    document_id: str = ""
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLedger:
    """Counts of dropped documents and tokens by reason.

    Attributes:
        documents: documents dropped, by reason; reasons with none are absent.
        tokens: tokens dropped, by reason, where they were known.
    """

    documents: Mapping[DropReason, int] = field(default_factory=dict)
    tokens: Mapping[DropReason, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("documents", "tokens"):
            counts = {
                reason: int(getattr(self, name)[reason])
                for reason in DropReason
                if getattr(self, name).get(reason, 0)
            }
            object.__setattr__(self, name, MappingProxyType(counts))

    @classmethod
    def of(cls, drops: Iterable[Drop]) -> "DropLedger":
        """Count drops."""
        documents: Counter[DropReason] = Counter()
        tokens: Counter[DropReason] = Counter()
        for drop in drops:
            documents[drop.reason] += 1
            tokens[drop.reason] += drop.tokens
        return cls(documents=documents, tokens=tokens)

    @property
    def total(self) -> int:
        """Documents dropped for any reason."""
        return sum(self.documents.values())

    def plus(self, other: "DropLedger") -> "DropLedger":
        """Sum of two ledgers."""
        return DropLedger(
            documents=Counter(self.documents) + Counter(other.documents),
            tokens=Counter(self.tokens) + Counter(other.tokens),
        )

    def as_json(self) -> dict[str, dict[str, int]]:
        """Plain dictionaries, in the order of `DropReason`."""
        return {
            "documents": {reason.value: count for reason, count in self.documents.items()},
            "tokens": {reason.value: count for reason, count in self.tokens.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, int]]) -> "DropLedger":
        """Inverse of `as_json`."""
        return cls(
            documents={DropReason(key): count for key, count in data["documents"].items()},
            tokens={DropReason(key): count for key, count in data["tokens"].items()},
        )


def check_conservation(*, documents_in: int, placed: int, drops: DropLedger, where: str) -> None:
    """Check that every document that came in was placed or dropped with a reason.

    Raises:
        ContractError: the numbers do not add up.
    """
    if documents_in != placed + drops.total:
        raise ContractError(
            f"{where}: {documents_in} documents in, but {placed} placed + {drops.total} dropped = "
            f"{placed + drops.total}."
        )
