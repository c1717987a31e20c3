"""Questions about one topic, each answered from that topic's documentation.

A turn maker takes a topic, the room left in characters and a generator, and returns one exchange,
or None where the documentation has no answer. Answers quote, list or count what `topics` has read;
nothing is made up.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from infra.demo.topics import Topic

Message = dict[str, Any]
"""One message in the OpenAI shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One question and its answer."""

    question: str
    answer: str

    def messages(self) -> list[Message]:
        """The exchange as a user and an assistant message."""
        return [
            {"role": "user", "content": self.question},
            {"role": "assistant", "content": self.answer},
        ]


TurnMaker = Callable[[Topic, int, Random], Exchange | None]
_MAX_ARGUMENTS_NAMED = 3


def fitting_paragraphs(paragraphs: tuple[str, ...], room: int) -> str:
    """Join as many leading paragraphs as fit.

    Args:
        paragraphs: At least one.
        room: Characters; the first paragraph is kept whatever its length.

    Returns:
        The paragraphs, an empty line between two.
    """
    kept = [paragraphs[0]]
    used = len(paragraphs[0])
    for paragraph in paragraphs[1:]:
        used += len(paragraph) + 2
        if used > room:
            break
        kept.append(paragraph)
    return "\n\n".join(kept)


def ask_purpose(topic: Topic, room: int, rng: Random) -> Exchange | None:
    """What the topic does: the documentation from its beginning."""
    question = rng.choice(
        (
            f"What does `{topic.name}` do?",
            f"Explain the {topic.kind} `{topic.name}` to me.",
            f"What is `{topic.name}` for?",
            f"I came across `{topic.name}` in some code. What is it?",
            f"Can you describe `{topic.name}`?",
            f"When would I use `{topic.name}`?",
        )
    )
    opening = rng.choice((f"`{topic.name}` is a {topic.kind} of the module `{topic.module}`.", ""))
    text = fitting_paragraphs(topic.paragraphs, room)
    return Exchange(question=question, answer=f"{opening}\n\n{text}".strip())


def ask_kind(topic: Topic, _room: int, rng: Random) -> Exchange | None:
    """Whether the topic is a function, a method or a class."""
    question = rng.choice(
        (
            f"Is `{topic.name}` a function or a class?",
            f"What kind of object is `{topic.name}`?",
            f"Which module does `{topic.name}` belong to?",
        )
    )
    return Exchange(
        question=question,
        answer=f"`{topic.name}` is a {topic.kind}. It belongs to the module `{topic.module}`.",
    )


def ask_call(topic: Topic, room: int, rng: Random) -> Exchange | None:
    """The signature, and the arguments where there is room."""
    if topic.call is None:
        return None
    question = rng.choice(
        (
            f"How do I call `{topic.name}`?",
            f"Show me the signature of `{topic.name}`.",
            f"What arguments does `{topic.name}` take?",
        )
    )
    answer = f"The signature is:\n\n```python\n{topic.call}\n```"
    if not topic.arguments:
        answer += "\n\nIt takes no arguments."
    elif room > len(answer) + 60 * len(topic.arguments):
        lines = [
            f"- `{a.name}` ({a.kind})"
            + (", required" if a.default is None else f", default `{a.default}`")
            for a in topic.arguments
        ]
        answer += "\n\nThe arguments are:\n\n" + "\n".join(lines)
    return Exchange(question=question, answer=answer)


def ask_argument(topic: Topic, room: int, rng: Random) -> Exchange | None:
    """One argument: how it is passed, its default, and the paragraph that speaks of it."""
    if not topic.arguments:
        return None
    argument = rng.choice(topic.arguments)
    question = rng.choice(
        (
            f"What is the argument `{argument.name}` of `{topic.name}`?",
            f"Do I have to pass `{argument.name}` to `{topic.name}`?",
            f"And what about `{argument.name}`?",
        )
    )
    answer = f"`{argument.name}` is a {argument.kind} argument of `{topic.name}`."
    if argument.default is not None:
        answer += f" Its default is `{argument.default}`, so you may leave it out."
    elif not argument.kind.startswith("variable"):
        answer += " It has no default, so you have to pass it."
    for paragraph in topic.paragraphs[1:]:
        mentioned = re.search(rf"\b{re.escape(argument.name)}\b", paragraph)
        if mentioned and len(answer) + len(paragraph) < room:
            answer += f" The documentation says:\n\n{paragraph}"
            break
    return Exchange(question=question, answer=answer)


def ask_more(topic: Topic, room: int, rng: Random) -> Exchange | None:
    """The documentation after its first paragraph."""
    if len(topic.paragraphs) == 1:
        return None
    question = rng.choice(
        (
            f"Tell me more about `{topic.name}`.",
            "What else does the documentation say?",
            f"Is there anything else I should know about `{topic.name}`?",
            "Go on, please.",
        )
    )
    return Exchange(question=question, answer=fitting_paragraphs(topic.paragraphs[1:], room))


def ask_example(topic: Topic, room: int, rng: Random) -> Exchange | None:
    """An interpreter session from the documentation."""
    sessions = [p for p in topic.paragraphs if p.lstrip().startswith(">>>") and len(p) < room]
    if not sessions:
        return None
    question = rng.choice(
        (f"Do you have an example of `{topic.name}`?", f"Show me `{topic.name}` at the prompt.")
    )
    return Exchange(
        question=question,
        answer=f"The documentation gives this one:\n\n```python\n{rng.choice(sessions)}\n```",
    )


def ask_summary(topic: Topic, _room: int, rng: Random) -> Exchange | None:
    """The first paragraph on one line."""
    question = rng.choice(
        (
            f"Sum up `{topic.name}` in one sentence.",
            f"In short, what is `{topic.name}`?",
            "Please repeat the main point briefly.",
        )
    )
    return Exchange(question=question, answer=f"`{topic.name}`: {topic.summary}")


def ask_count(topic: Topic, _room: int, rng: Random) -> Exchange | None:
    """How many arguments may be left out."""
    if topic.call is None or not topic.arguments:
        return None
    optional = [a.name for a in topic.arguments if a.default is not None]
    question = rng.choice(
        (
            f"How many arguments does `{topic.name}` have, and how many are optional?",
            f"Which arguments of `{topic.name}` have a default?",
        )
    )
    answer = f"Arguments of `{topic.name}`: {len(topic.arguments)}. With a default: {len(optional)}"
    if optional:
        named = ", ".join(f"`{name}`" for name in optional[:_MAX_ARGUMENTS_NAMED])
        answer += f", namely {named}" + (
            " and more" if len(optional) > _MAX_ARGUMENTS_NAMED else ""
        )
    return Exchange(question=question, answer=answer + ".")


def ask_neighbours(topic: Topic, neighbours: tuple[Topic, ...], room: int, rng: Random) -> Exchange:
    """What else the module offers, one line for each.

    Args:
        topic: The topic whose module is listed.
        neighbours: Topics of the same module, in any number.
        room: Characters for the list.
        rng: Chooses the wording.

    Returns:
        The exchange; the list holds as many neighbours as fit.
    """
    question = rng.choice(
        (
            f"What else is there in the module `{topic.module}`?",
            f"List some other names of `{topic.module}` with a line on each.",
            f"Give me an overview of `{topic.module}`.",
        )
    )
    lines: list[str] = []
    used = 0
    for neighbour in neighbours:
        line = f"- `{neighbour.name}` ({neighbour.kind}): {neighbour.summary}"
        used += len(line)
        if lines and used > room:
            break
        lines.append(line)
    return Exchange(question=question, answer=f"From `{topic.module}`:\n\n" + "\n".join(lines))


def say_thanks(topic: Topic, _room: int, rng: Random) -> Exchange | None:
    """A closing exchange."""
    question = rng.choice(("Thanks!", "Thank you, that helps.", "Great, thanks a lot."))
    answer = rng.choice(
        (
            "You're welcome.",
            f"You're welcome. Ask again if anything about `{topic.name}` is unclear.",
            f"Glad to help with `{topic.module}`.",
        )
    )
    return Exchange(question=question, answer=answer)


TURN_MAKERS: tuple[TurnMaker, ...] = (
    ask_purpose,
    ask_kind,
    ask_call,
    ask_argument,
    ask_more,
    ask_example,
    ask_summary,
    ask_count,
)
"""Questions that may stand anywhere in a conversation."""
