"""`StoredConversation`: a checked conversation, from the split step to the tokenize step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConversation:
    """One conversation in canonical JSON, with where it came from.

    Attributes:
        document_id: 32 hex digits, digest of the content; the id of its first document.
        conversation: canonical JSON text.
        format: prompt format that its source asks for.
        source: name of the source.
        uri: file it was read from.
        line: record number in that file, counted from 0.
        ordinal: its number within the record, counted from 0.
    """

    document_id: str
    conversation: str
    format: str
    source: str = ""
    uri: str = ""
    line: int = 0
    ordinal: int = 0
