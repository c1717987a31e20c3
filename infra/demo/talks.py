"""Conversations without tools: documentation talks, reasoning, typed control tokens.

Every talk takes a `Library` (the topics and their modules), a target in characters and a generator,
and grows until the target is reached or nothing is left to ask.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from infra.demo import turns
from infra.demo.topics import Topic
from infra.demo.turns import Message

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You answer questions about Python's standard library.",
    "You are a patient teacher of Python. Quote the documentation where you can.",
    "Answer briefly and precisely.",
    "You are a programmer's reference. Put code in backticks.",
    "You help people who read other people's code.\nSay what a name does before you say more.",
    "You are a careful assistant. If you do not know, say so.",
)
_SHARE_WITH_SYSTEM = 0.8
_SHARE_OF_SINGLES_WITH_SYSTEM = 0.5
_SHARE_WITH_THANKS = 0.1
_MAX_TURNS = 14
_TYPED_TOKENS = ("<|im_end|>", "<|im_start|>", "<SPECIAL_11>", "<|endoftext|>", "<think>", "<pad>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages in the OpenAI shape and the tools they may call."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()

    def key(self) -> str:
        """Canonical JSON: equal for equal conversations."""
        return json.dumps([self.messages, self.tools], sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Topics in order, by name, and grouped by module."""

    topics: tuple[Topic, ...]
    by_name: Mapping[str, Topic]
    by_module: Mapping[str, tuple[Topic, ...]]

    @classmethod
    def of(cls, topics: tuple[Topic, ...]) -> "Library":
        """Index `topics`."""
        modules: dict[str, list[Topic]] = {}
        for topic in topics:
            modules.setdefault(topic.module, []).append(topic)
        return cls(
            topics=topics,
            by_name={topic.name: topic for topic in topics},
            by_module={name: tuple(found) for name, found in modules.items()},
        )


def size_of(messages: list[Message]) -> int:
    """Characters of all contents, reasoning and calls included."""
    size = 0
    for message in messages:
        size += len(message.get("content") or "") + len(message.get("reasoning_content") or "")
        size += sum(len(json.dumps(call["function"])) for call in message.get("tool_calls", ()))
    return size


def system_message(prompt: str) -> Message:
    """A system message."""
    return {"role": "system", "content": prompt}


def plain_talk(library: Library, target: int, rng: Random) -> Conversation:
    """Questions and answers about one topic, then about others of its module."""
    messages: list[Message] = []
    if rng.random() < _SHARE_WITH_SYSTEM:
        messages.append(system_message(rng.choice(SYSTEM_PROMPTS)))
    topic = rng.choice(library.topics)
    neighbours = library.by_module[topic.module]
    makers = _shuffled_makers(rng)
    for _ in range(_MAX_TURNS):
        room = target - size_of(messages)
        if room <= 0 and messages[-1]["role"] == "assistant":
            break
        if not makers:
            topic, makers = rng.choice(neighbours), _shuffled_makers(rng)
            others = tuple(rng.sample(neighbours, k=len(neighbours)))
            messages += turns.ask_neighbours(topic, others, room, rng).messages()
            continue
        exchange = makers.pop(0)(topic, room, rng)
        if exchange is not None:
            messages += exchange.messages()
    if rng.random() < _SHARE_WITH_THANKS:
        closing = turns.say_thanks(topic, 0, rng)
        messages += closing.messages() if closing is not None else []
    return Conversation(messages=tuple(messages))


def single_talk(library: Library, target: int, rng: Random) -> Conversation:
    """One question and one answer, as instruction data has them; half have a system message."""
    talk = plain_talk(library, min(target, 400), rng).messages
    first = 1 if talk[0]["role"] == "system" else 0
    messages = list(talk[first : first + 2])
    if rng.random() < _SHARE_OF_SINGLES_WITH_SYSTEM:
        messages.insert(0, system_message(rng.choice(SYSTEM_PROMPTS)))
    return Conversation(messages=tuple(messages))


def system_talk(library: Library, target: int, rng: Random) -> Conversation:
    """A plain talk that certainly begins with a system message."""
    messages = plain_talk(library, target, rng).messages
    if messages[0]["role"] != "system":
        messages = (system_message(rng.choice(SYSTEM_PROMPTS)), *messages)
    return Conversation(messages=messages)


def reasoned_talk(library: Library, target: int, rng: Random) -> Conversation:
    """Exchanges whose answers carry `reasoning_content`."""
    messages: list[Message] = []
    if rng.random() < _SHARE_WITH_SYSTEM:
        messages.append(system_message(rng.choice(SYSTEM_PROMPTS)))
    exchanges = 0
    while (size_of(messages) < target and exchanges < _MAX_TURNS) or exchanges == 0:
        question, reasoning, answer = rng.choice((_multiply, _weigh_argument))(library, rng)
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "reasoning_content": reasoning, "content": answer},
        ]
        exchanges += 1
    return Conversation(messages=tuple(messages))


def typed_token_talk(_library: Library, _target: int, rng: Random) -> Conversation:
    """People who type control tokens and `/think`: data, not structure."""
    typed = rng.choice(_TYPED_TOKENS)
    number = rng.randint(1, 999)
    questions = (
        (f"What does {typed} mean in line {number} of my file?", f"The text {typed} on its own."),
        (
            f"Is https://example.org/think/{number} a valid address?",
            f"Yes. Its path is /think/{number}.",
        ),
        (f"Repeat after me: {typed} {number}", f"{typed} {number}"),
    )
    question, answer = rng.choice(questions)
    return Conversation(
        messages=(
            system_message(rng.choice(SYSTEM_PROMPTS)),
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        )
    )


def _shuffled_makers(rng: Random) -> list[turns.TurnMaker]:
    return rng.sample(turns.TURN_MAKERS, k=len(turns.TURN_MAKERS))


def _multiply(_library: Library, rng: Random) -> tuple[str, str, str]:
    left, right = rng.randint(11, 99), rng.randint(11, 99)
    tens, ones = right // 10 * 10, right % 10
    reasoning = (
        f"Split {right} into {tens} and {ones}.\n"
        f"{left} * {tens} = {left * tens}.\n{left} * {ones} = {left * ones}.\n"
        f"Together: {left * tens} + {left * ones} = {left * right}."
    )
    return f"What is {left} * {right}?", reasoning, f"{left} * {right} = {left * right}"


def _weigh_argument(library: Library, rng: Random) -> tuple[str, str, str]:
    candidates = [topic for topic in library.topics if topic.arguments]
    topic = rng.choice(candidates)
    argument = rng.choice(topic.arguments)
    question = f"May I leave `{argument.name}` out when I call `{topic.name}`?"
    reasoning = f"The signature is {topic.call}. "
    if argument.default is not None:
        reasoning += f"`{argument.name}` has the default {argument.default}."
        answer = f"Yes. It is then `{argument.default}`."
    elif argument.kind.startswith("variable"):
        reasoning += f"`{argument.name}` is {argument.kind}, so it may be empty."
        answer = "Yes. It then receives nothing."
    else:
        reasoning += f"`{argument.name}` has no default."
        answer = f"No. `{argument.name}` has to be passed."
    return question, reasoning, answer
