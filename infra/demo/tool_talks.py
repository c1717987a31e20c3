"""Conversations that call tools: question, call or calls, results, and an answer that uses them.

Each conversation offers one to three tools and calls only those.
"""

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from infra.demo import tools
from infra.demo.talks import Conversation, Library, size_of, system_message
from infra.demo.turns import Message

TOOL_PROMPTS = (
    "You are a helpful assistant with access to tools.",
    "Use the tools to look things up and to compute; do not guess.",
    "You answer questions about Python. Call a tool before you answer.",
)
_MOST_MESSAGES = 48


def tool_talk(library: Library, target: int, rng: Random) -> Conversation:
    """Rounds of question, tool call or calls, result and an answer that uses it."""
    messages = [system_message(rng.choice(TOOL_PROMPTS))]
    offered = rng.sample(_ROUNDS, k=rng.randint(1, len(_ROUNDS)))
    while size_of(messages) < target or messages[-1]["role"] != "assistant":
        messages += rng.choice(rng.choice(offered)[1])(library, rng)
        if len(messages) > _MOST_MESSAGES:
            break
    return Conversation(messages=tuple(messages), tools=tuple(tool for tool, _ in offered))


def _call(rng: Random, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": f"call_{rng.getrandbits(32):08x}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def _round(
    question: str, calls: list[dict[str, Any]], results: list[str], answer: str
) -> list[Message]:
    replies = [
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "name": call["function"]["name"],
            "content": result,
        }
        for call, result in zip(calls, results, strict=True)
    ]
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *replies,
        {"role": "assistant", "content": answer},
    ]


def _lookup_round(library: Library, rng: Random) -> list[Message]:
    topic = rng.choice(library.topics)
    result = tools.lookup(topic.name, topics=library.by_name)
    answer = f"`{topic.name}` is a {topic.kind}: {topic.summary}"
    if topic.call is not None:
        answer += f"\n\nCall it as `{topic.call}`."
    question = rng.choice(
        (f"Please look up `{topic.name}`.", f"What does the documentation say on `{topic.name}`?")
    )
    calls = [_call(rng, "lookup_docs", {"name": topic.name})]
    return _round(question, calls, [result], answer)


def _wrong_name_round(library: Library, rng: Random) -> list[Message]:
    name = rng.choice(library.topics).name
    cut = rng.randrange(1, len(name))
    wrong = name[:cut] + name[cut + 1 :] + "_x"
    result = tools.lookup(wrong, topics=library.by_name)
    similar = json.loads(result).get("similar", [])
    answer = f"There is no documentation for `{wrong}`."
    if similar:
        answer += " Did you mean " + " or ".join(f"`{name}`" for name in similar) + "?"
    calls = [_call(rng, "lookup_docs", {"name": wrong})]
    return _round(f"Please look up `{wrong}`.", calls, [result], answer)


def _evaluate_round(_library: Library, rng: Random) -> list[Message]:
    computed = [tools.compute(rng) for _ in range(rng.choice((1, 1, 2)))]
    calls = [_call(rng, "evaluate", {"expression": c.expression}) for c in computed]
    asked = " and ".join(f"`{c.expression}`" for c in computed)
    answer = "\n".join(f"`{c.expression}` is `{c.value}`." for c in computed)
    return _round(f"What is {asked}?", calls, [c.value for c in computed], answer)


def _character_round(_library: Library, rng: Random) -> list[Message]:
    character = rng.choice(tools.CHARACTERS)
    found = json.loads(tools.describe_character(character))
    answer = f"{character} is {found['code_point']}, {found['name']}."
    calls = [_call(rng, "describe_character", {"character": character})]
    question = f"Which character is {character}?"
    return _round(question, calls, [json.dumps(found, ensure_ascii=False)], answer)


_ROUNDS = (
    (tools.LOOKUP_DOCS, (_lookup_round, _lookup_round, _wrong_name_round)),
    (tools.EVALUATE, (_evaluate_round,)),
    (tools.DESCRIBE_CHARACTER, (_character_round,)),
)
"""Each tool with the rounds that call it."""
