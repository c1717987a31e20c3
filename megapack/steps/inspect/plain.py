"""Documents as lines for a terminal or a pipe.

Content is data: escape sequences and direction marks in it are shown, never sent to the terminal.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import groupby

from megapack.conversation.token_text import TokenTexts
from megapack.steps.inspect.opinion import TeacherView
from megapack.steps.inspect.pieces import MarkedPiece, around_trained, pieces_of
from megapack.steps.inspect.shown import Group, ShownDocument
from megapack.steps.inspect.teacher import opinion_text, word_of

_PICTURES = 0x2400
_DELETE = 0x7F
_SPACE = 0x20
_DIRECTIONS = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_INDENT = "  "
_WORD = 20


class Style(StrEnum):
    """How trained text and control tokens are told from the rest."""

    PLAIN = "plain"
    COLOUR = "colour"


_OFF = "\x1b[0m"
_COLOURS = {  # by whether it is trained, and whether it is a control token
    (True, False): "\x1b[32;4m",
    (True, True): "\x1b[36;4m",
    (False, True): "\x1b[36;2m",
    (False, False): "",
}
LEGENDS = {
    Style.PLAIN: "«trained: tokens the model learns to say»  ⟦control token⟧  ↵ line break",
    Style.COLOUR: f"{_COLOURS[True, False]}trained: tokens the model learns to say{_OFF}  "
    f"{_COLOURS[False, True]}control token{_OFF}  ↵ line break",
}
"""What the marks mean, by style."""


def lines_of(
    groups: Iterable[Group], texts: TokenTexts | None, *, style: Style, most: int
) -> Iterator[str]:
    """Documents, one after another, each with its heading.

    Args:
        groups: what to show.
        texts: the tokenizer's texts, None for ids.
        style: with colours or without.
        most: tokens shown of each document; of a longer one those around what is trained.
    """
    for group in groups:
        yield group.title
        for document in group.documents:
            yield ""
            yield f"{_INDENT}{heading(document)}"
            if document.teacher is None:
                text = _text_of(document, texts, style=style, most=most)
                lines = text.split("\n")
            else:
                lines = _judged(document, document.teacher, texts, most=most)
            yield from (f"{_INDENT}{line}" for line in lines)
        yield ""


def _text_of(document: ShownDocument, texts: TokenTexts | None, *, style: Style, most: int) -> str:
    shown, at = [], 0
    for span in around_trained(document, most=most):
        shown += _left_out(document, at, span[0])
        pieces = pieces_of(document, texts, span=span)
        shown.append("".join(_coloured(pieces) if style is Style.COLOUR else _marked(pieces)))
        at = span[1]
    shown += _left_out(document, at, document.tokens.size)
    return "\n".join(shown)


def _judged(
    document: ShownDocument, teacher: TeacherView, texts: TokenTexts | None, *, most: int
) -> list[str]:
    """A line a token: number, whether it is trained, its text, and what the teacher expected."""
    lines, at = [], 0
    for start, end in around_trained(document, most=most):
        lines += _left_out(document, at, start)
        for token in range(start, end):
            identity = int(document.tokens[token])
            word = visible(word_of(identity, texts))
            marked = f"«{word}»" if document.trained[token] else f" {word} "
            opinion = teacher.of(token, identity)
            told = "first token" if opinion is None else visible(opinion_text(opinion, texts))
            lines.append(f"{token:>6} {marked:<{_WORD}} {told}")
        at = end
    return lines + _left_out(document, at, document.tokens.size)


def _left_out(document: ShownDocument, start: int, end: int) -> list[str]:
    """A line in the place of tokens that are not shown."""
    if start == end:
        return []
    trained = int(document.trained[start:end].sum())
    told = f"{trained:,} of them trained" if trained else "none of them trained"
    return [f"… {end - start:,} tokens left out, {told} (--max-tokens shows more) …"]


def heading(document: ShownDocument) -> str:
    """One line on a document: id, source, file and line, length, targets, slot."""
    size, trained = document.tokens.size, document.num_trained
    facts = [f"document {document.document_id}"]
    facts += [f"source {visible(document.source)}"] if document.source else []
    facts += [visible(document.place)] if document.place else []
    facts.append(f"{size:,} tokens, {trained:,} trained ({trained / size:.0%})")
    if document.slot is not None:
        slot = document.slot
        facts.append(
            f"positions {slot.start}-{slot.start + slot.positions - 1}, slot to "
            f"{slot.start + slot.length - 1}"
        )
    if document.label_only:
        facts.append("the last token is only a label")
    return " | ".join(facts)


def visible(text: str) -> str:
    """Text that cannot act on a terminal: what could is shown by a sign or its number.

    >>> visible("a" + chr(27) + "[2J")
    'a␛[2J'
    """
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    if code < _SPACE:
        return chr(_PICTURES + code)
    if code == _DELETE:
        return "␡"
    if character in _DIRECTIONS or unicodedata.category(character) in ("Cc", "Zl", "Zp"):
        return f"\\u{code:04x}"
    return character


def _marked(pieces: Iterable[MarkedPiece]) -> Iterator[str]:
    """Text with signs around each trained run and each control token."""
    for trained, run in groupby(pieces, key=lambda piece: piece.trained):
        text = "".join(f"⟦{_text(one)}⟧" if one.control else _text(one) for one in run)
        yield f"«{text}»" if trained else text


def _coloured(pieces: Iterable[MarkedPiece]) -> Iterator[str]:
    """Text in colours, switched off before each line break, so that a pager shows it right."""
    for kind, run in groupby(pieces, key=lambda piece: (piece.trained, piece.control)):
        colour, text = _COLOURS[kind], "".join(map(_text, run))
        if not colour:
            yield text
            continue
        yield "\n".join(f"{colour}{part}{_OFF}" if part else "" for part in text.split("\n"))


def _text(piece: MarkedPiece) -> str:
    return visible(piece.text).replace("\n", "↵\n")
