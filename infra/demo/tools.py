"""The tools of the demo's tool conversations, and what they really return.

`evaluate` computes with integers and strings only: floating point results could differ in the last
digit between C libraries.
"""

import difflib
import json
import math
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from infra.demo.topics import Topic

_LONGEST_DOCUMENTATION = 700


def _schema(name: str, description: str, argument: str, meaning: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "string", "description": meaning}},
                "required": [argument],
            },
        },
    }


LOOKUP_DOCS = _schema(
    "lookup_docs",
    "Look a name up in the documentation of the standard library.",
    "name",
    "The dotted name, for example json.dumps",
)
EVALUATE = _schema(
    "evaluate",
    "Evaluate a Python expression and return its value.",
    "expression",
    "The expression to evaluate",
)
DESCRIBE_CHARACTER = _schema(
    "describe_character",
    "Return the Unicode name and category of one character.",
    "character",
    "A single character",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """An expression in Python's syntax and the repr of its value."""

    expression: str
    value: str


_WORDS = (
    "packing",
    "naïve",
    "étude",
    "straße",
    "résumé",
    "coöperate",
    "façade",
    "señor",
    "Ελλάδα",
    "Україна",
    "東京",
    "tokens",
    "rows",
    "gradient",
    "conversation",
    "parallel",
    "tensor",
    "documents",
    "übung",
    "smörgåsbord",
    "жизнь",
    "안녕",
    "שלום",
    "café",
)
CHARACTERS = "éñøßçżλΩжקש中東あ한अไ∑√∞≤→★☃✓€£½…—«»😀🚀🎉👍🐍"
"""Characters for the Unicode conversations: one code point each."""


def _two(low: int, high: int) -> Callable[[Random], tuple[int, ...]]:
    return lambda rng: (rng.randint(low, high), rng.randint(low, high))


def _word(rng: Random) -> tuple[str, ...]:
    return (rng.choice(_WORDS),)


def _numbers(rng: Random) -> tuple[list[int], ...]:
    return ([rng.randint(0, 99) for _ in range(rng.randint(3, 6))],)


_FUNCTIONS: tuple[tuple[str, Callable[..., Any], Callable[[Random], tuple[Any, ...]]], ...] = (
    ("math.gcd", math.gcd, _two(12, 400)),
    ("math.lcm", math.lcm, _two(4, 60)),
    ("math.comb", math.comb, lambda rng: (rng.randint(6, 14), rng.randint(2, 5))),
    ("divmod", divmod, _two(3, 500)),
    ("max", max, _numbers),
    ("sorted", sorted, _numbers),
    ("sum", sum, _numbers),
    ("len", len, _word),
    ("str.upper", str.upper, _word),
    ("str.title", str.title, _word),
    ("str.encode", str.encode, _word),
    ("hex", hex, lambda rng: (rng.randint(10, 5000),)),
    ("bin", bin, lambda rng: (rng.randint(2, 300),)),
)


def compute(rng: Random) -> Computation:
    """Draw a call of a known function and compute it."""
    name, function, draw = rng.choice(_FUNCTIONS)
    arguments = draw(rng)
    shown = ", ".join(repr(argument) for argument in arguments)
    return Computation(expression=f"{name}({shown})", value=repr(function(*arguments)))


def lookup(name: str, *, topics: Mapping[str, Topic]) -> str:
    """The result of `lookup_docs` as a JSON text.

    Args:
        name: What the model asked for.
        topics: By name.

    Returns:
        The documentation, or an error with the nearest names of the same module or class.
    """
    topic = topics.get(name)
    if topic is None:
        module = name.rpartition(".")[0]
        names = [known for known in topics if known.startswith(module)]
        near = difflib.get_close_matches(name, names, n=2, cutoff=0.7)
        result: dict[str, Any] = {"error": f"no documentation for {name}", "similar": near}
    else:
        text = topic.documentation
        if len(text) > _LONGEST_DOCUMENTATION:
            text = text[:_LONGEST_DOCUMENTATION].rsplit(" ", 1)[0] + " …"
        result = {"name": name, "kind": topic.kind, "call": topic.call, "documentation": text}
    return json.dumps(result, ensure_ascii=False)


def describe_character(character: str) -> str:
    """The result of `describe_character` as a JSON text."""
    return json.dumps(
        {
            "character": character,
            "name": unicodedata.name(character),
            "category": unicodedata.category(character),
            "code_point": f"U+{ord(character):04X}",
        },
        ensure_ascii=False,
    )
