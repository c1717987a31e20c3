"""Merged messages -> conversations.

A `.jsonl.packed` record is one row of several chats laid end to end: a new chat begins at every
system message, and what stands before the first one is a chat too. A chat without a system message
cannot be told from the one before it and stays joined to it. Any other record is one conversation,
whatever system messages stand in its middle.
"""

from collections.abc import Sequence
from enum import StrEnum

from megapack.conversation.messages import Json, Role
from megapack.conversation.parse import role_of
from megapack.conversation.shapes import RawConversation


class Merged(StrEnum):
    """Whether records of a file hold several conversations."""

    NO = "no"
    AT_SYSTEM_MESSAGES = "at_system_messages"


def split_conversations(raw: RawConversation, *, merged: Merged) -> tuple[RawConversation, ...]:
    """Cut a record into its conversations.

    Args:
        raw: the record.
        merged: whether it may hold several.

    Returns:
        The conversations in order, at least one; their messages joined are the record's. Tools
        and template values of the record go to each.
    """
    if merged is Merged.NO:
        return (raw,)
    return tuple(
        RawConversation(messages=tuple(part), tools=raw.tools, template_kwargs=raw.template_kwargs)
        for part in _parts(raw.messages)
    )


def _parts(messages: Sequence[Json]) -> list[list[Json]]:
    parts: list[list[Json]] = [[]]
    for message in messages:
        if role_of(message) is Role.SYSTEM and parts[-1]:
            parts.append([])
        parts[-1].append(message)
    return parts
