"""What a person can do about each reason for which documents are dropped."""

from collections.abc import Mapping

from megapack.records.drops import DropReason

ADVICE: Mapping[DropReason, str] = {
    DropReason.UNREADABLE: "Mend the line in the source, or write the file again as UTF-8 JSON.",
    DropReason.UNKNOWN_SHAPE: "Convert the record to `messages`, `conversations` or alpaca keys.",
    DropReason.UNKNOWN_ROLE: "Rename the role to system, user, assistant or tool in the source.",
    DropReason.BAD_ROLE_ORDER: "Begin with the user's turn, and put each tool turn after its call.",
    DropReason.EMPTY: "Nothing to learn there: take the record out, or fill in the answer.",
    DropReason.DUPLICATE: "Wanted, when repeats are not: set pack.duplicates = keep to keep them.",
    DropReason.TEMPLATE_ERROR: "Read what the template says; mend the record or the template.",
    DropReason.LOSSY_FORMAT: "Choose a format that can say it, or set tokenize.on_lossy = keep.",
    DropReason.MASK_UNKNOWN: "Mark answers with {% generation %} in the chat template.",
    DropReason.MISSING_SPECIAL_TOKEN: "Use a tokenizer that has the token, or another format.",
    DropReason.NOTHING_SUPERVISED: "No answer is trained: check the loss switches of its turns.",
    DropReason.TOO_LONG: "Raise tokenize.max_document_tokens or pack.row_length, or set "
    "tokenize.long_documents = split.",
    DropReason.LONGER_THAN_ROW: "Raise pack.row_length, or set tokenize.long_documents = split.",
}
"""Advice by reason."""


def advice(reason: DropReason) -> str:
    """What to do about a reason."""
    return ADVICE.get(reason, "Look at the examples.")
