"""Turns of a conversation about images, from the two forms in which they are written.

Form 1: `conversations`, a list of `{"from": "human" | "gpt" | "system", "value": text}`. Form 2:
`messages`, a list of `{"role": "user" | "assistant" | "system", "content": text or parts}`, where a
part is `{"type": "text", "text": text}`, `{"type": "image"}` or `{"type": "video"}`, which stands
for a mark. Marks in texts, `<image>` and `<video>`, cut a text; white space beside a mark belongs
to the mark.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from megapack.multimodal.rejected import RejectedError, shown
from megapack.records.rejects import RejectReason


class Role(StrEnum):
    """Who speaks: what an assistant says is predicted."""

    PROMPT = "prompt"
    ASSISTANT = "assistant"


class Mark(StrEnum):
    """What stands for images in a text."""

    IMAGE = "<image>"
    VIDEO = "<video>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn.

    Attributes:
        role: who speaks.
        pieces: texts that are not blank, and marks, in order.
    """

    role: Role
    pieces: tuple[str | Mark, ...]


_ROLES = {
    "human": Role.PROMPT,
    "user": Role.PROMPT,
    "system": Role.PROMPT,
    "gpt": Role.ASSISTANT,
    "assistant": Role.ASSISTANT,
}


def read_turns(record: Mapping[str, object], marks: frozenset[Mark]) -> tuple[Turn, ...]:
    """Turns of a record, in order.

    Args:
        record: with `conversations` or `messages`.
        marks: what counts as a mark; others are text.

    Raises:
        RejectedError: it has no turns, a role is unknown, or values are of another type.
    """
    for field, role, content in (
        ("conversations", "from", "value"),
        ("messages", "role", "content"),
    ):
        turns = record.get(field)
        if turns is None:
            continue
        if not isinstance(turns, list):
            raise _unreadable(field, "a list of turns", turns)
        return tuple(
            _turn(one, f"{field}[{at}]", (role, content), marks) for at, one in enumerate(turns)
        )
    raise RejectedError(
        RejectReason.MISSING_FIELD, "expected `conversations` or `messages`, found neither."
    )


def _turn(turn: object, where: str, names: tuple[str, str], marks: frozenset[Mark]) -> Turn:
    if not isinstance(turn, Mapping):
        raise _unreadable(where, "an object", turn)
    name, content = turn.get(names[0]), turn.get(names[1])
    if not isinstance(name, str):
        raise _unreadable(f"{where}.{names[0]}", "a role", name)
    if name not in _ROLES:
        raise RejectedError(
            RejectReason.UNKNOWN_ROLE,
            f"{where}.{names[0]}: expected one of {', '.join(_ROLES)}, found {shown(name)}.",
        )
    parts = content if isinstance(content, list) else [content]
    pieces: list[str | Mark] = []
    for at, part in enumerate(parts):
        pieces.extend(_pieces(part, f"{where}.{names[1]}[{at}]", marks))
    return Turn(role=_ROLES[name], pieces=tuple(_joined(pieces)))


def _pieces(part: object, where: str, marks: frozenset[Mark]) -> Iterator[str | Mark]:
    """Texts, blank ones included, and marks of one part."""
    if isinstance(part, Mapping):
        kind = part.get("type")
        if kind in ("image", "video"):
            yield Mark(f"<{kind}>")
            return
        part = part.get("text") if kind == "text" else None
    if not isinstance(part, str):
        raise _unreadable(where, "text, or a part of type text, image or video", part)
    pattern = "|".join(sorted(marks))
    for piece in re.split(f"({pattern})", part) if marks else (part,):
        yield Mark(piece) if piece in marks else piece


def _joined(pieces: list[str | Mark]) -> Iterator[str | Mark]:
    """Texts without the white space beside marks; blank ones are left out."""
    last = len(pieces) - 1
    for at, piece in enumerate(pieces):
        if isinstance(piece, Mark):
            yield piece
            continue
        if at > 0 and isinstance(pieces[at - 1], Mark):
            piece = piece.lstrip()
        if at < last and isinstance(pieces[at + 1], Mark):
            piece = piece.rstrip()
        if piece.strip():
            yield piece


def _unreadable(where: str, expected: str, found: object) -> RejectedError:
    return RejectedError(
        RejectReason.UNREADABLE_RECORD, f"{where}: expected {expected}, found {shown(found)}."
    )
