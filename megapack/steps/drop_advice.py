"""What a person can do about each reason for which documents are dropped."""

from collections.abc import Mapping

from megapack.records.drops import DropReason

ADVICE: Mapping[str, str] = {
    "unreadable": "Mend the line in the source, or write the file again as UTF-8 JSON.",
    "unknown_shape": "Convert the record to `messages`, `conversations` or alpaca keys.",
    "unknown_role": "Rename the role to system, user, assistant or tool in the source.",
    "bad_role_order": "Begin with the user's turn, and put each tool turn after its call.",
    "empty": "Nothing to learn there: take the record out, or fill in the answer.",
    "duplicate": "pack.duplicates = drop asked for this; keep would keep repeats.",
    "template_error": "Read what the template says; mend the record or the template.",
    "lossy_format": "Choose a format that can say it, or set tokenize.on_lossy = keep.",
    "mask_unknown": "Mark answers with {% generation %} in the chat template.",
    "missing_special_token": "Use a tokenizer that has the token, or another format.",
    "nothing_supervised": "Nothing trains: is there an answer, and do loss_turns, loss_parts or "
    "its own switches leave any of it?",
    "too_long": "Raise pack.row_length (and max_document_tokens) to what the details say; "
    "long_documents = split keeps every exchange that fits.",
    "longer_than_row": "Raise pack.row_length to what the details say.",
    "left_out_by_blend": "Wanted, by the weights: raise the source's weight or pack.blend.total.",
}
"""Advice by the name of the reason."""


def advice(reason: DropReason) -> str:
    """What to do about a reason."""
    return ADVICE.get(reason.value, "Look at the examples.")
