"""Raw messages -> a checked `Conversation`.

What is decided here, for every format:

* `developer` is read as `system`, `function` as `tool`; any other name than the four roles is
  UNKNOWN_ROLE with its index.
* Content may be text, null or a list of text parts (joined); other parts are UNKNOWN_SHAPE. So is
  a turn without a content, calls or reasoning that has other keys, which may hold its text under
  a name that is not known here; and reasoning under two names that differ, or outside an
  assistant turn.
* An assistant turn needs content, reasoning or a call. Blank content without them is EMPTY: such a
  turn would teach the model to stop at once.
* The first turn after the system messages must be the user's; a tool turn must follow an assistant
  turn or another tool turn. Repeated user, assistant or system turns are left to the format.
* Loss switches are `loss` or `train` (true/false) and OpenAI's `weight` (0/1), on assistant turns.
  Any other weight is UNKNOWN_SHAPE: tokens train or do not.
* Other keys (ids, times, `refusal`) are left out.
"""

from collections.abc import Mapping, Sequence

from megapack.conversation.messages import Conversation, Json, Message, Role
from megapack.conversation.rejection import RejectedError
from megapack.conversation.shapes import RawConversation
from megapack.records.drops import DropReason

_ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM, "function": Role.TOOL}
_REASONING = ("reasoning_content", "reasoning", "thinking")
_MEDIA = ("images", "image", "audio", "audios", "video", "videos")
_SWITCHES = ("loss", "train", "weight")
_KEYS = {
    *("role", "content", "name", "tool_calls", "tool_call_id", "function_call"),
    *(*_REASONING, *_MEDIA, *_SWITCHES),
}


def parse_conversation(raw: RawConversation) -> Conversation:
    """Check raw messages and make a conversation of them.

    Raises:
        RejectedError: with the index of the message at fault.
    """
    messages = tuple(_message(turn, index=index) for index, turn in enumerate(raw.messages))
    check_order(messages)
    return Conversation(messages=messages, tools=raw.tools, template_kwargs=raw.template_kwargs)


def role_of(turn: Json) -> Role | None:
    """Role of a raw message, None when it has no known one."""
    role = turn.get("role") if isinstance(turn, Mapping) else None
    return _ROLES.get(role) if isinstance(role, str) else None


def check_order(messages: Sequence[Message]) -> None:
    """Check what must hold in every format.

    Raises:
        RejectedError: EMPTY or BAD_ROLE_ORDER.
    """
    if not messages:
        raise RejectedError(DropReason.EMPTY, "expected at least one message, found none.")
    previous: Role | None = None
    started = False
    for index, message in enumerate(messages):
        if message.role is Role.ASSISTANT and not _says_something(message):
            raise RejectedError(
                DropReason.EMPTY,
                f"expected content, reasoning or tool calls in assistant message {index}, found "
                f"{message.content!r}.",
            )
        if not started and message.role in (Role.ASSISTANT, Role.TOOL):
            raise RejectedError(
                DropReason.BAD_ROLE_ORDER,
                f"expected a user message first, found {message.role.value} at message {index}.",
            )
        if message.role is Role.TOOL and previous not in (Role.ASSISTANT, Role.TOOL):
            raise RejectedError(
                DropReason.BAD_ROLE_ORDER,
                f"expected tool message {index} after an assistant or tool message, found it "
                f"after {previous.value if previous else 'nothing'}.",
            )
        previous = message.role
        started = started or previous is not Role.SYSTEM


def _says_something(message: Message) -> bool:
    return bool(message.content.strip() or message.reasoning.strip() or message.tool_calls)


def _message(turn: Json, *, index: int) -> Message:
    if not isinstance(turn, Mapping):
        raise _odd(index, f"an object, found {type(turn).__name__}")
    role = role_of(turn)
    if role is None:
        raise RejectedError(
            DropReason.UNKNOWN_ROLE,
            f"expected one of the roles {', '.join(sorted(_ROLES))} at message {index}, found "
            f"{turn.get('role')!r}.",
        )
    media = [key for key in _MEDIA if turn.get(key)]
    if media:
        raise _odd(index, f"text only, found {media[0]!r}")
    calls = _tool_calls(turn, index=index)
    if calls and role is not Role.ASSISTANT:
        raise _odd(index, f"tool calls in assistant messages only, found them in {role.value}")
    reasoning = _reasoning(turn, role=role, index=index)
    unknown = sorted(set(turn) - _KEYS)
    if unknown and "content" not in turn and not calls and not reasoning:
        raise _odd(index, f"a content, found only {', '.join(map(repr, unknown))[:200]}")
    return Message(
        role=role,
        content=_text(turn.get("content"), index=index),
        reasoning=reasoning,
        tool_calls=calls,
        tool_call_id=_string(turn, "tool_call_id", index=index),
        name=_string(turn, "name", index=index),
        loss=_loss(turn, role=role, index=index),
    )


def _odd(index: int, what: str) -> RejectedError:
    return RejectedError(DropReason.UNKNOWN_SHAPE, f"message {index}: expected {what}.")


def _text(content: Json, *, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise _odd(index, f"content as text, null or text parts, found {type(content).__name__}")
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif (
            isinstance(part, Mapping)
            and part.get("type", "text") == "text"
            and isinstance(part.get("text"), str)
        ):
            parts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise _odd(index, f"text parts only, found a part of type {kind!r}")
    return "".join(parts)


def _reasoning(turn: Mapping[str, Json], *, role: Role, index: int) -> str:
    found = {key: _string(turn, key, index=index) for key in _REASONING}
    texts = {text for text in found.values() if text}
    if len(texts) > 1:
        raise _odd(index, f"one reasoning, found {found} that differ")
    if texts and role is not Role.ASSISTANT:
        raise _odd(index, f"reasoning in assistant messages only, found it in {role.value}")
    return next(iter(texts), "")


def _string(turn: Mapping[str, Json], key: str, *, index: int) -> str:
    value = turn.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _odd(index, f"{key} as text, found {type(value).__name__}")
    return value


def _tool_calls(turn: Mapping[str, Json], *, index: int) -> tuple[Json, ...]:
    calls = turn.get("tool_calls")
    if calls and turn.get("function_call"):
        raise _odd(index, "either tool_calls or function_call, found both")
    if turn.get("function_call"):
        calls = [{"type": "function", "function": turn["function_call"]}]
    if not calls:
        return ()
    if not isinstance(calls, list):
        raise _odd(index, f"tool_calls as a list, found {type(calls).__name__}")
    for call in calls:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _odd(index, "tool calls with a function name, found one without")
        if not isinstance(function.get("arguments", {}), str | Mapping):
            raise _odd(index, "tool call arguments as JSON text or an object, found another type")
    return tuple(calls)


def _loss(turn: Mapping[str, Json], *, role: Role, index: int) -> bool | None:
    found: dict[str, bool] = {}
    for key in _SWITCHES:
        value = turn.get(key)
        if value is None:
            continue
        if value not in (0, 1):
            raise _odd(index, f"{key} as 0, 1, true or false, found {value!r}")
        if role is not Role.ASSISTANT and value:
            raise _odd(index, f"{key} switched on in assistant messages only")
        found[key] = bool(value)
    if len(set(found.values())) > 1:
        raise _odd(index, f"loss switches that agree, found {found}")
    return next(iter(found.values()), None) if role is Role.ASSISTANT else None
