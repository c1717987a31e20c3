"""Records that a reader has to refuse, so that the demo's drop report has something to say.

Each flaw is one line of JSON (or of broken JSON). They are few, named and counted in `demo.json`,
and stand between good records at places drawn from the file's own generator.
"""

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from random import Random

from infra.demo.talks import Conversation
from infra.demo.turns import Message


class Flaw(StrEnum):
    """What is wrong with a record."""

    UNREADABLE = "unreadable"
    NOT_AN_OBJECT = "not_an_object"
    UNKNOWN_SHAPE = "unknown_shape"
    UNKNOWN_ROLE = "unknown_role"
    ASSISTANT_FIRST = "assistant_first"
    NO_MESSAGES = "no_messages"
    EMPTY_ASSISTANT = "empty_assistant"
    BLANK_ASSISTANT = "blank_assistant"
    NO_ASSISTANT = "no_assistant"
    DUPLICATE = "duplicate"


def flawed_lines(good: Sequence[Conversation], *, each: int, rng: Random) -> list[tuple[Flaw, str]]:
    """Make flawed records out of good ones.

    Args:
        good: Conversations to spoil or copy; plain ones, at least one.
        each: Records of each flaw.
        rng: Chooses them.

    Returns:
        `each` lines for each flaw, in random order. A duplicate says the same as its original with
        its keys in another order.
    """
    lines = [
        (flaw, spoil(rng.choice(good).messages, rng))
        for flaw, spoil in _SPOILERS.items()
        for _ in range(each)
    ]
    copied = rng.sample(good, k=min(each, len(good)))
    lines += [(Flaw.DUPLICATE, _reordered(conversation.messages)) for conversation in copied]
    rng.shuffle(lines)
    return lines


def _line(messages: Sequence[Message]) -> str:
    return json.dumps({"messages": list(messages)}, ensure_ascii=False)


def _reordered(messages: Sequence[Message]) -> str:
    return _line([dict(sorted(message.items())) for message in messages])


def _unreadable(messages: Sequence[Message], rng: Random) -> str:
    whole = _line(messages)
    return whole[: rng.randrange(len(whole) // 2, len(whole) - 2)]


def _not_an_object(messages: Sequence[Message], _rng: Random) -> str:
    return json.dumps(messages[-1]["content"], ensure_ascii=False)


def _unknown_shape(messages: Sequence[Message], rng: Random) -> str:
    flat = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
    return json.dumps(
        {rng.choice(("text", "messages_display", "dialog")): flat}, ensure_ascii=False
    )


def _unknown_role(messages: Sequence[Message], rng: Random) -> str:
    role = rng.choice(("narrator", "critic", "bot"))
    return _line([*messages[:-1], {"role": role, "content": messages[-1]["content"]}])


def _assistant_first(messages: Sequence[Message], _rng: Random) -> str:
    greeting = {"role": "assistant", "content": "Hello! What would you like to know?"}
    return _line([greeting, *(m for m in messages if m["role"] != "system")])


def _no_messages(_messages: Sequence[Message], _rng: Random) -> str:
    return _line([])


def _empty_assistant(messages: Sequence[Message], _rng: Random) -> str:
    return _line([*messages[:-1], {"role": "assistant", "content": ""}])


def _blank_assistant(messages: Sequence[Message], rng: Random) -> str:
    blank = rng.choice((" ", "\n", " \n\t"))
    return _line([*messages[:-1], {"role": "assistant", "content": blank}])


def _no_assistant(messages: Sequence[Message], _rng: Random) -> str:
    until_first_question = next(i for i, m in enumerate(messages) if m["role"] == "user") + 1
    return _line(messages[:until_first_question])


_SPOILERS: dict[Flaw, Callable[[Sequence[Message], Random], str]] = {
    Flaw.UNREADABLE: _unreadable,
    Flaw.NOT_AN_OBJECT: _not_an_object,
    Flaw.UNKNOWN_SHAPE: _unknown_shape,
    Flaw.UNKNOWN_ROLE: _unknown_role,
    Flaw.ASSISTANT_FIRST: _assistant_first,
    Flaw.NO_MESSAGES: _no_messages,
    Flaw.EMPTY_ASSISTANT: _empty_assistant,
    Flaw.BLANK_ASSISTANT: _blank_assistant,
    Flaw.NO_ASSISTANT: _no_assistant,
}
