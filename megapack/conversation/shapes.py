"""Source shapes: OpenAI messages, ShareGPT conversations, Alpaca instructions.

Every shape becomes a list of raw OpenAI-style messages; `parse` turns those into values. What has
none of the three shapes is refused with the keys that were found: nothing is half-read. So is a
record with turns under two keys, a turn without any text, and a record whose own `system` differs
from the system message that its turns begin with. Keys that no shape knows are left alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from megapack.conversation.messages import Json
from megapack.conversation.rejection import RejectedError
from megapack.records.drops import DropReason

ACCEPTED_SHAPES = (
    '{"messages": [{"role", "content", ...}]}, {"conversations": [{"from", "value"}]} or '
    '{"instruction", "input", "output"}'
)
_SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
_CALL_ROLES = ("function_call", "tool_call")
_CHATS = ("messages", "conversations")
_WORDS = ("role", "from", "content", "value")
_PAIR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RawConversation:
    """A record in OpenAI words, its messages not yet checked.

    Attributes:
        messages: raw messages.
        tools: tool descriptions.
        template_kwargs: the record's own template values.
    """

    messages: tuple[Json, ...]
    tools: tuple[Json, ...] = ()
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)


def read_shape(record: Json) -> RawConversation:
    """Find a record's shape and bring it to OpenAI words.

    Args:
        record: one record of a source file.

    Raises:
        RejectedError: UNKNOWN_SHAPE with the keys that were found.
    """
    if not isinstance(record, Mapping):
        raise _unknown(f"found a {type(record).__name__} instead of an object")
    alpaca = isinstance(record.get("instruction"), str) and isinstance(record.get("output"), str)
    found = [key for key in _CHATS if record.get(key) is not None] + ["instruction"] * alpaca
    if len(found) > 1:
        raise _unknown(f"found turns under {' and '.join(map(repr, found))}; keep one of them")
    if alpaca:
        return _conversation(record, _alpaca(record))
    for key in found:
        if not isinstance(record[key], list):
            raise _unknown(f"found {key!r} with a {type(record[key]).__name__}, not a list")
        return _conversation(record, _chat(record, record[key]))
    raise _unknown(f"found keys {', '.join(repr(key) for key in sorted(record))[:200]}")


def _unknown(found: str) -> RejectedError:
    return RejectedError(DropReason.UNKNOWN_SHAPE, f"expected {ACCEPTED_SHAPES}; {found}.")


def _chat(record: Mapping[str, Json], turns: list[Json]) -> list[Json]:
    messages = [_openai_words(turn) for turn in turns]
    first = messages[0] if messages else None
    system = _optional_text(record, "system")
    if system.strip():
        if not isinstance(first, Mapping) or first.get("role") not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": system})
        elif first.get("content") != system:
            raise _unknown("found a 'system' beside a first system message of another text")
    return messages


def _conversation(record: Mapping[str, Json], messages: list[Json]) -> RawConversation:
    kwargs = record.get("chat_template_kwargs") or record.get("template_kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise _unknown(f"found template kwargs of type {type(kwargs).__name__}, not an object")
    return RawConversation(
        messages=tuple(messages),
        tools=_tools(record.get("tools") or record.get("functions")),
        template_kwargs=kwargs,
    )


def _optional_text(record: Mapping[str, Json], key: str) -> str:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise _unknown(f"found {key!r} with a {type(value).__name__}, not text")
    return value or ""


def _tools(tools: Json) -> tuple[Json, ...]:
    """Tools as a list; ShareGPT files hold them as JSON text."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except ValueError as error:
            raise _unknown(f"found 'tools' as text that is no JSON ({error})") from error
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise _unknown(f"found 'tools' of type {type(tools).__name__}, not a list")
    return tuple(tools)


def _openai_words(turn: Json) -> Json:
    """A ShareGPT turn in OpenAI words, also one with keys of both; any other turn as it is."""
    if not isinstance(turn, Mapping) or not ("from" in turn or "value" in turn):
        return turn
    role, content = _either(turn, "role", "from"), _either(turn, "content", "value")
    rest = {key: value for key, value in turn.items() if key not in _WORDS}
    if role in _CALL_ROLES:
        return rest | {"role": "assistant", "content": "", "tool_calls": _calls(content)}
    name = _SHAREGPT_ROLES.get(role, role) if isinstance(role, str) else role
    return rest | {"role": name, "content": content}


def _either(turn: Mapping[str, Json], one: str, other: str) -> Json:
    """The value under either key."""
    if turn.get(one) is not None and turn.get(other) not in (None, turn[one]):
        raise _unknown(f"found a turn with {one!r} and {other!r} that differ")
    return turn.get(one) if turn.get(one) is not None else turn.get(other)


def _calls(value: Json) -> list[Json]:
    """Calls of a ShareGPT `function_call` turn: JSON text of one call or of a list of calls."""
    try:
        calls = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise _unknown(f"found a function_call that is no JSON ({error})") from error
    calls = calls if isinstance(calls, list) else [calls]
    for call in calls:
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise _unknown('found a function_call that is not {"name", "arguments"}')
    return [
        {
            "type": "function",
            "function": {"name": call["name"], "arguments": call.get("arguments", {})},
        }
        for call in calls
    ]


def _alpaca(record: Mapping[str, Json]) -> list[Json]:
    messages: list[Json] = []
    system = _optional_text(record, "system")
    if system.strip():
        messages.append({"role": "system", "content": system})
    history = record.get("history")
    if history is not None and not isinstance(history, list):
        raise _unknown(f"found 'history' with a {type(history).__name__}, not a list")
    for pair in history or ():
        if not isinstance(pair, list) or len(pair) != _PAIR:
            raise _unknown("found a 'history' that is not a list of [question, answer] pairs")
        messages.append({"role": "user", "content": pair[0]})
        messages.append({"role": "assistant", "content": pair[1]})
    extra = _optional_text(record, "input")
    question = record["instruction"]
    if extra.strip():
        question = f"{question}\n{extra}"
    messages.append({"role": "user", "content": question})
    messages.append({"role": "assistant", "content": record["output"]})
    return messages
