"""Which conversations the demo holds: how many of each kind, how long, in which file.

Lengths are drawn from a log-normal distribution, so most conversations are short and a few are
longer than a training row. No two good conversations are equal; the copies among the flawed records
are made on purpose.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from infra.demo import talks, tool_talks
from infra.demo.talks import Conversation, Library
from infra.demo.topics import DemoError

SEED = 20250101
_MEDIAN_CHARACTERS = 560
_SPREAD = 0.85
_SHORTEST, _LONGEST = 60, 5600
_ATTEMPTS = 200


class Shape(StrEnum):
    """How a file writes its conversations."""

    MESSAGES = "messages"
    MESSAGES_GZIP = "messages_gzip"
    MERGED = "merged"
    SHAREGPT = "sharegpt"
    ALPACA = "alpaca"
    PARQUET = "parquet"


Talk = Callable[[Library, int, Random], Conversation]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """One file of the demo.

    Attributes:
        name: File name under `data`.
        shape: How its records look.
        shares: For each kind of talk its part of all conversations, in percent.
    """

    name: str
    shape: Shape
    shares: tuple[tuple[Talk, int], ...]


FILES = (
    FilePlan(name="messages-000.jsonl", shape=Shape.MESSAGES, shares=((talks.plain_talk, 13),)),
    FilePlan(name="messages-001.jsonl", shape=Shape.MESSAGES, shares=((talks.plain_talk, 13),)),
    FilePlan(
        name="reasoning.jsonl",
        shape=Shape.MESSAGES,
        shares=((talks.reasoned_talk, 10), (talks.typed_token_talk, 2), (talks.plain_talk, 5)),
    ),
    FilePlan(
        name="tools.jsonl.gz", shape=Shape.MESSAGES_GZIP, shares=((tool_talks.tool_talk, 15),)
    ),
    FilePlan(name="merged.jsonl.packed", shape=Shape.MERGED, shares=((talks.system_talk, 14),)),
    FilePlan(name="sharegpt.json", shape=Shape.SHAREGPT, shares=((talks.plain_talk, 12),)),
    FilePlan(name="alpaca.jsonl", shape=Shape.ALPACA, shares=((talks.single_talk, 8),)),
    FilePlan(name="table.parquet", shape=Shape.PARQUET, shares=((talks.plain_talk, 8),)),
)
"""The shares add up to 100."""


def generate(library: Library, *, size: int) -> dict[str, tuple[Conversation, ...]]:
    """Make the good conversations of every file.

    Args:
        library: What to talk about.
        size: Conversations over all files; each kind gets its share, at least one.

    Returns:
        File name to conversations, in the order of `FILES`; the same for the same library and size.

    Raises:
        DemoError: `size` is so large that no new conversation can be found.
    """
    seen: set[str] = set()
    made: dict[str, tuple[Conversation, ...]] = {}
    for plan in FILES:
        rng = Random(f"{SEED}/{plan.name}")
        wanted = [talk for talk, share in plan.shares for _ in range(max(1, size * share // 100))]
        rng.shuffle(wanted)
        made[plan.name] = tuple(_unseen(library, talk, rng, seen) for talk in wanted)
    return made


def _unseen(library: Library, talk: Talk, rng: Random, seen: set[str]) -> Conversation:
    for _ in range(_ATTEMPTS):
        conversation = talk(library, _target(rng), rng)
        key = conversation.key()
        if key not in seen:
            seen.add(key)
            return conversation
    raise DemoError(
        f"Expected a new {talk.__name__}; found {_ATTEMPTS} known ones in a row after {len(seen)} "
        "conversations. Ask for a smaller size."
    )


def _target(rng: Random) -> int:
    drawn = rng.lognormvariate(math.log(_MEDIAN_CHARACTERS), _SPREAD)
    return int(min(max(drawn, _SHORTEST), _LONGEST))
