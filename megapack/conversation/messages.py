"""`Message` and `Conversation`: what every source shape becomes, and how it is known by content.

The canonical form has fixed keys in a fixed order and leaves out what is empty, so `null`, `""`
and an absent key are one thing. What people wrote inside tools and arguments keeps its own key
order: templates print it in that order, so another order is another document.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic_core import from_json

from megapack.records.digest import digest_of

Json = Any
"""A JSON value."""


class Role(StrEnum):
    """Who speaks. Every source shape's names are mapped to these four."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


_ROLES = {role.value: role for role in Role}
_ALWAYS = 2
"""Keys that each canonical message has: role and content."""


class Message(NamedTuple):
    """One turn; a tuple, which is made 5 times as fast as a frozen dataclass.

    Attributes:
        role: who speaks.
        content: its text; "" when it has none.
        reasoning: thinking text of an assistant turn that is kept apart from the content.
        tool_calls: calls of an assistant turn, as the source wrote them (arguments may be a JSON
            string or an object).
        tool_call_id: call that a tool turn answers.
        name: name of the speaker or tool.
        loss: per-turn loss switch of the data; None where the data has none.
    """

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[Json, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    loss: bool | None = None

    def as_json(self) -> dict[str, Json]:
        """Canonical form: fixed key order; empty fields but the content are absent."""
        record: dict[str, Json] = {"role": self.role.value, "content": self.content}
        if self.name:
            record["name"] = self.name
        if self.reasoning:
            record["reasoning_content"] = self.reasoning
        if self.tool_calls:
            record["tool_calls"] = list(self.tool_calls)
        if self.tool_call_id:
            record["tool_call_id"] = self.tool_call_id
        if self.loss is not None:
            record["loss"] = self.loss
        return record

    def for_template(self) -> dict[str, Json]:
        """What a chat template sees; reasoning stands under both names that templates read."""
        record = self.as_json()
        record.pop("loss", None)
        if self.reasoning:
            record["thinking"] = self.reasoning
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Json]) -> "Message":
        """Inverse of `as_json`."""
        role, content = _ROLES[record["role"]], record["content"]
        if len(record) == _ALWAYS:
            return cls(role, content)
        return cls(
            role=role,
            content=content,
            reasoning=record.get("reasoning_content", ""),
            tool_calls=tuple(record.get("tool_calls", ())),
            tool_call_id=record.get("tool_call_id", ""),
            name=record.get("name", ""),
            loss=record.get("loss"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A list of turns with the tools and template settings that belong to it.

    Attributes:
        messages: the turns, at least one.
        tools: tool descriptions, as the source wrote them.
        template_kwargs: the row's own values for the chat template.
        text: its canonical JSON where it was read from that; see `dumps`.
    """

    messages: tuple[Message, ...]
    tools: tuple[Json, ...] = ()
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)
    text: str | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "template_kwargs", MappingProxyType(dict(self.template_kwargs)))

    def dumps(self) -> str:
        """Canonical JSON text."""
        if self.text is not None:
            return self.text
        record: dict[str, Json] = {"messages": [message.as_json() for message in self.messages]}
        if self.tools:
            record["tools"] = list(self.tools)
        if self.template_kwargs:
            record["template_kwargs"] = dict(sorted(self.template_kwargs.items()))
        return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    @classmethod
    def loads(cls, text: str) -> "Conversation":
        """Inverse of `dumps`."""
        record = _read(text)
        return cls(
            messages=tuple(map(Message.from_json, record["messages"])),
            tools=tuple(record.get("tools", ())),
            template_kwargs=record.get("template_kwargs", {}),
            text=text,
        )

    def with_messages(self, messages: tuple[Message, ...]) -> "Conversation":
        """The same tools and settings around other turns."""
        return Conversation(
            messages=messages, tools=self.tools, template_kwargs=self.template_kwargs
        )


def _read(text: str) -> Json:
    """What `json.loads` gives, in half of its time."""
    try:
        return from_json(text)
    except (ValueError, TypeError):
        # It refuses text nested deeply, and text that UTF-8 cannot express.
        return json.loads(text)


def conversation_digest(canonical: str) -> str:
    """64 hex digits of a conversation's canonical JSON text."""
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def document_id(canonical: str, *, piece: int = 0) -> str:
    """32 hex digits that name a document by its content.

    The first 16 are the conversation's, so that all pieces of one share them.

    Args:
        canonical: `Conversation.dumps()`.
        piece: number of the piece when a long conversation was split.
    """
    whole = conversation_digest(canonical)
    return whole[:16] + digest_of({"conversation": whole, "piece": piece})[:16]
