"""Chats as real data has them: every role, odd text, typed control tokens, calls, loss keys.

One generator draws from a `random.Random`, so the same chats serve hypothesis (`conversations()`,
`records()`, which shrink) and files of any size (`some_records(number, seed=...)`). `Traits` says
what a chat may hold: a format that cannot express a thing is tested without it.
"""

import json
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from megapack.conversation.messages import Conversation
from megapack.conversation.parse import parse_conversation
from megapack.conversation.shapes import read_shape

CONTROL = ("<eot>", "<a>", "<u>", "</s>", "<pad>", "<unk>", "<SPECIAL_11>", "<|im_end|>", "[INST]")
TAGS = ("<think>", "</think>", "<think></think>", "<tool_call>", "/think", "/no_think", "{{ x }}")
ODD = (
    "\x00",
    "\ufeff",
    "\ufffe",
    "\U0001ffff",
    "\u202ertl\u202c",
    "\u200b",
    "\u00ad",
    "e\u0301",
    "é",
    "ﬁ",
    "👩\u200d👩\u200d👧",
    "🙂",
    "\U000e0067",
    "\u2028",
    "\u202f",
    "\u3000",
    "\x85",
    "\r\n",
    "\t",
)
WORDS = ("a", "ok", "Say it", "The sky", "x = 1", "  if a:\n    b", "\n\n", "\n", " ", "Assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What chats may hold.

    Attributes:
        tools: tool descriptions, calls and results.
        reasoning: reasoning kept apart from the content.
        systems: system messages, one or several, also in the middle.
        repeats: several user or assistant turns in a row, chats that end with a user turn.
        loss: switches on assistant turns.
        literals: control tokens and tags typed in content.
        odd: unicode beyond letters.
    """

    tools: bool = True
    reasoning: bool = True
    systems: bool = True
    repeats: bool = True
    loss: bool = True
    literals: bool = True
    odd: bool = True


ALL = Traits()


def nasty_text(draw: Random, traits: Traits = ALL) -> str:
    """Text with a visible character in it."""
    pool = [WORDS]
    pool += [CONTROL, TAGS] if traits.literals else []
    pool += [ODD] if traits.odd else []
    text = "".join(draw.choice(draw.choice(pool)) for _ in range(draw.randint(1, 5)))
    return text if text.strip() else f"{text}a"


def nasty_messages(draw: Random, traits: Traits = ALL) -> list[dict]:
    """OpenAI-style messages that parse: user first, results after calls."""
    messages = _systems(draw, traits)
    for _ in range(draw.randint(1, 3)):
        messages += _exchange(draw, traits)
    if traits.repeats and draw.random() < 0.2:
        messages.append({"role": "user", "content": nasty_text(draw, traits)})
    return messages


def nasty_conversation(draw: Random, traits: Traits = ALL) -> Conversation:
    """A parsed chat."""
    return parse_conversation(read_shape(nasty_openai(draw, traits)))


def nasty_openai(draw: Random, traits: Traits = ALL) -> dict:
    """An OpenAI-style record that parses."""
    record: dict = {"messages": nasty_messages(draw, traits)}
    if traits.tools and draw.random() < 0.5:
        record["tools"] = [{"type": "function", "function": {"name": "find", "é": {"z": 1}}}]
    if draw.random() < 0.2:
        record["chat_template_kwargs"] = {"mode": draw.choice(["deep", "<eot>", "é"])}
    return record


def nasty_record(draw: Random) -> object:
    """A record of any shape; about one in five cannot be used."""
    kind = draw.randrange(10)
    if kind < 2:
        return draw.choice(_BROKEN)(draw)
    if kind < 4:
        return _sharegpt(draw)
    if kind == 4:
        return _alpaca(draw)
    record = nasty_openai(draw)
    for message in record["messages"]:
        if draw.random() < 0.1:
            message["metadata"] = {"id": draw.randrange(9)}
    return record


def conversations(traits: Traits = ALL) -> st.SearchStrategy[Conversation]:
    """Chats that parse."""
    return st.randoms(use_true_random=False).map(lambda draw: nasty_conversation(draw, traits))


def records() -> st.SearchStrategy[object]:
    """Records, some of which cannot be used."""
    return st.randoms(use_true_random=False).map(nasty_record)


def some_records(number: int, *, seed: int) -> list[object]:
    """The same records for the same seed, for files."""
    draw = Random(seed)
    return [nasty_record(draw) for _ in range(number)]


def _systems(draw: Random, traits: Traits) -> list[dict]:
    if not traits.systems:
        return []
    roles = draw.choice([[], ["system"], ["developer"], ["system", "system"]])
    return [{"role": role, "content": nasty_text(draw, traits)} for role in roles]


def _exchange(draw: Random, traits: Traits) -> list[dict]:
    messages: list[dict] = []
    if traits.systems and traits.repeats and draw.random() < 0.1:
        messages.append({"role": "system", "content": nasty_text(draw, traits)})
    for _ in range(1 + (traits.repeats and draw.random() < 0.15)):
        content = nasty_text(draw, traits) if draw.random() < 0.95 else draw.choice(["", " ", None])
        messages.append({"role": "user", "content": content})
    while traits.tools and draw.random() < 0.3:
        messages += _calls_and_results(draw, traits)
    for _ in range(1 + (traits.repeats and draw.random() < 0.15)):
        messages.append(_assistant(draw, traits, {"content": nasty_text(draw, traits)}))
    return messages


def _assistant(draw: Random, traits: Traits, fields: dict) -> dict:
    message = {"role": "assistant", **fields}
    if traits.reasoning and draw.random() < 0.3:
        key = draw.choice(["reasoning_content", "reasoning", "thinking"])
        message[key] = nasty_text(draw, traits)
    if traits.loss and draw.random() < 0.3:
        switches = [{"loss": False}, {"train": True}, {"weight": 0}, {"weight": 1.0}]
        message |= draw.choice(switches)
    return message


def _calls_and_results(draw: Random, traits: Traits) -> list[dict]:
    number = draw.randint(1, 2)
    calls = [
        {
            "id": f"call{at}",
            "type": "function",
            "function": {
                "name": draw.choice(["find", "add_2"]),
                "arguments": draw.choice([{"q": nasty_text(draw, traits), "a": 1}, '{"z": "é"}']),
            },
        }
        for at in range(number)
    ]
    content = draw.choice([None, "", nasty_text(draw, traits)])
    turn = _assistant(draw, traits, {"content": content, "tool_calls": calls})
    results = [
        {"role": "tool", "tool_call_id": f"call{at}", "content": nasty_text(draw, traits)}
        for at in range(number)
    ]
    return [turn, *results]


def _sharegpt(draw: Random) -> dict:
    names = {"user": "human", "assistant": "gpt", "tool": "observation"}
    turns = []
    for message in nasty_messages(draw, Traits(reasoning=False)):
        if message.get("tool_calls"):
            calls = [call["function"] for call in message["tool_calls"]]
            turns.append({"from": "function_call", "value": json.dumps(calls)})
            continue
        role = names.get(message["role"], message["role"])
        turns.append({"from": role, "value": message["content"]})
    return {"conversations": turns, "tools": "[]"}


def _alpaca(draw: Random) -> dict:
    record = {"instruction": nasty_text(draw), "output": nasty_text(draw)}
    if draw.random() < 0.5:
        record |= {"input": nasty_text(draw), "system": nasty_text(draw)}
    if draw.random() < 0.5:
        record["history"] = [[nasty_text(draw), nasty_text(draw)]]
    return record


_U = {"role": "user", "content": "hi"}
_BROKEN = (
    lambda _: {"text": "no chat"},
    lambda _: {"messages": []},
    lambda _: ["no", "object"],
    lambda draw: {"messages": [_U, {"role": "bot", "content": nasty_text(draw)}]},
    lambda _: {"messages": [_U, {"role": "assistant", "content": "  "}]},
    lambda draw: {"messages": [{"role": "assistant", "content": nasty_text(draw)}, _U]},
    lambda draw: {"messages": [_U, {"role": "tool", "content": nasty_text(draw)}]},
    lambda _: {"messages": [_U, {"role": "assistant", "content": "x", "weight": 0.5}]},
    lambda _: {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    lambda _: {"messages": [_U, {"role": "assistant", "content": "cut \ud83d"}]},
)
