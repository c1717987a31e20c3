"""What became of each message in a render: a second render with a trace behind each text tells.

A trace is a short code between noncharacters, put right behind the last visible character of a
message's content and reasoning and behind each called function's name; where parts of a turn are
told apart, right before the first visible character too. Which texts a template left out, and
whose text stands at a place, is then read off instead of guessed from counts.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from megapack.conversation.messages import Conversation, Json, Role
from megapack.conversation.render import Span

_MARK = "\ufdd2"
# Templates that escape what they print as JSON write the mark as an escape.
# Some write a text in capitals.
_TRACE = re.compile(rf"(?:{_MARK}|\\+ufdd2)(\d+)([a-z])(\d+)(?:{_MARK}|\\+ufdd2)", re.IGNORECASE)


class Kind(StrEnum):
    """What a trace stands at."""

    CONTENT_START = "b"
    CONTENT = "c"
    REASONING_START = "q"
    REASONING = "r"
    CALL = "k"


_ENDS = {
    "content": Kind.CONTENT,
    "reasoning_content": Kind.REASONING,
    "thinking": Kind.REASONING,
}
_CALLED = {
    Role.SYSTEM: "system text",
    Role.ASSISTANT: "content",
    Role.TOOL: "tool result",
}
_STARTS = {Kind.CONTENT: Kind.CONTENT_START, Kind.REASONING: Kind.REASONING_START}

Trace = tuple[int, str, int]
"""Message, kind of text, number within the message."""


def trace_messages(messages: Sequence[Json], *, systems: Collection[int] = ()) -> list[Json]:
    """Messages, as templates see them, with traces.

    Args:
        messages: as the template sees them.
        systems: system messages that get traces too; templates look into these.
    """
    return [
        message
        if message["role"] == Role.SYSTEM.value and index not in systems
        else _traced(message, index=index)
        for index, message in enumerate(messages)
    ]


def unseen_systems(messages: Sequence[Json], text: str) -> list[int]:
    """System messages that a render does not hold word for word: left out, or rewritten.

    Args:
        messages: as the template saw them.
        text: the render.
    """
    unseen = []
    for index, message in enumerate(messages):
        words = message["content"].strip() if message["role"] == Role.SYSTEM.value else ""
        # Another message may hold the same words.
        if words and text.count(words) < sum(other["content"].count(words) for other in messages):
            unseen.append(index)
    return unseen


def trace_parts(messages: Sequence[Json], *, indexes: Collection[int]) -> list[Json]:
    """Messages with traces at both ends of the texts of some."""
    return [
        _traced(message, index=index, starts=_STARTS) if index in indexes else message
        for index, message in enumerate(messages)
    ]


def has_losable(conversation: Conversation) -> bool:
    """Whether a conversation holds what templates are known to leave out."""
    last = conversation.messages[-1]
    return bool(last.reasoning) or any(
        message.tool_calls or message.role is Role.TOOL for message in conversation.messages
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRender:
    """Traces of a render.

    Attributes:
        places: (character in the render without traces, trace), in order of place.
        text: the render without traces.
        spans: what its generation blocks wrote, in that text.
    """

    places: tuple[tuple[int, Trace], ...]
    text: str
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, text: str, spans: Sequence[Span]) -> "TracedRender":
        """Read the traces of a render of `trace_messages`."""
        places, cuts, removed = [], [], 0
        for match in _TRACE.finditer(text):
            places.append(
                (match.start() - removed, (int(match[1]), match[2].lower(), int(match[3])))
            )
            removed += len(match[0])
            cuts.append((match.end(), removed))

        def moved(position: int) -> int:
            return position - max((gone for end, gone in cuts if end <= position), default=0)

        return cls(
            places=tuple(places),
            text=_TRACE.sub("", text),
            spans=tuple((moved(start), moved(end)) for start, end in spans),
        )

    def losses(self, conversation: Conversation, *, systems: Collection[int] = ()) -> list[str]:
        """Calls and what stands beside them, tool results, final reasoning, system texts left out.

        Args:
            conversation: what was rendered.
            systems: system messages that have traces.
        """
        found = {trace for _, trace in self.places}
        losses = []
        last = len(conversation.messages) - 1
        for index, message in enumerate(conversation.messages):
            losses += [
                f"the tool call {call.get('function', call)['name']!r} of message {index}"
                for number, call in enumerate(message.tool_calls)
                if (index, Kind.CALL, number) not in found
            ]
            asked = message.role is Role.TOOL or message.tool_calls or index in systems
            if asked and message.content.strip() and (index, Kind.CONTENT, 0) not in found:
                losses.append(f"the {_CALLED[message.role]} of message {index}")
            thinks = index == last and message.reasoning.strip()
            if thinks and (index, Kind.REASONING, 0) not in found:
                losses.append(f"the reasoning of message {index}")
        return losses

    def owner(self, span: Span, *, answers: Sequence[int], last: int) -> int | None:
        """The assistant message that a generation block belongs to, None when it is not clear.

        Args:
            span: what the block wrote.
            answers: indexes of the assistant messages.
            last: index of the last message.
        """
        messages = [trace[0] for _, trace in self.places]
        if messages != sorted(messages):
            return None
        start, end = span
        inside = [trace[0] for place, trace in self.places if start < place <= end]
        if not inside:
            before = [trace[0] for place, trace in self.places if place <= start]
            after = [trace[0] for place, trace in self.places if place > end]
            inside = [before[-1] if before else 0, after[0] if after else last]
        owners = [index for index in answers if inside[0] <= index <= inside[-1]]
        return owners[0] if len(owners) == 1 else None


def _traced(
    message: Mapping[str, Json], *, index: int, starts: Mapping[Kind, Kind] | None = None
) -> dict[str, Json]:
    traced = dict(message)
    for key, kind in _ENDS.items():
        text = message.get(key)
        if isinstance(text, str) and text.strip():
            seen = text.rstrip()
            lead = seen[: len(seen) - len(seen.lstrip())] if starts else ""
            before = _code(index, starts[kind], 0) if starts else ""
            after = _code(index, kind, 0)
            traced[key] = f"{lead}{before}{seen[len(lead) :]}{after}{text[len(seen) :]}"
    if message.get("tool_calls"):
        traced["tool_calls"] = [
            _traced_call(call, code=_code(index, Kind.CALL, number))
            for number, call in enumerate(message["tool_calls"])
        ]
    return traced


def _traced_call(call: Mapping[str, Json], *, code: str) -> dict[str, Json]:
    function = call.get("function", call)
    named = {**function, "name": f"{function['name']}{code}"}
    return {**call, "function": named} if "function" in call else named


def _code(index: int, kind: Kind, number: int) -> str:
    return f"{_MARK}{index}{kind.value}{number}{_MARK}"
