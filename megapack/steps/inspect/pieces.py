"""A document as pieces of text, each wholly trained or wholly not."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from megapack.conversation.token_text import TextPiece, TokenTexts
from megapack.layout.runs import Bool
from megapack.steps.inspect.shown import ShownDocument

_BESIDE = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedPiece:
    """Tokens shown as one: a token, or those of one character.

    Attributes:
        text: what they say; the id as digits when there is no tokenizer.
        start: index of the first token in the document.
        count: how many tokens.
        control: whether it is a control token.
        trained: whether they are trained.
    """

    text: str
    start: int
    count: int
    control: bool
    trained: bool


Span = tuple[int, int]
"""First token, and one past the last."""


def head(document: ShownDocument, *, most: int) -> list[Span]:
    """The first `most` tokens, as one span."""
    return [(0, min(most, document.tokens.size))]


def around_trained(document: ShownDocument, *, most: int) -> list[Span]:
    """At most `most` tokens: all, or the trained ones with what stands next to them.

    Of each long stretch that is not trained the first and last 40 tokens are kept, so that a long
    system message does not hide the answers.

    Returns:
        Spans in order, which do not touch.
    """
    size = int(document.tokens.size)
    if size <= most:
        return [(0, size)]
    changes = np.flatnonzero(np.diff(document.trained.astype(np.int8))) + 1
    edges = [0, *changes.tolist(), size]
    spans: list[Span] = []
    for start, end in pairwise(edges):
        if document.trained[start] or end - start <= 2 * _BESIDE:
            spans.append((start, end))
        else:
            spans += [(start, start + _BESIDE), (end - _BESIDE, end)]
    return _shortened(_joined(spans), most)


def pieces_of(
    document: ShownDocument, texts: TokenTexts | None, *, span: Span
) -> Iterator[MarkedPiece]:
    """Tokens of a document as pieces.

    A character is cut where the mask cuts it, so that such a fault can be seen.

    Args:
        document: what to show.
        texts: the tokenizer's texts, None for ids.
        span: which of its tokens.
    """
    at, end = span
    ids = document.tokens[at:end].tolist()
    for piece in _pieces(ids, trained=document.trained[at:end], texts=texts):
        yield MarkedPiece(
            text=piece.text,
            start=at,
            count=piece.count,
            control=piece.control,
            trained=bool(document.trained[at]),
        )
        at += piece.count


def _joined(spans: list[Span]) -> list[Span]:
    joined = spans[:1]
    for start, end in spans[1:]:
        if start == joined[-1][1]:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _shortened(spans: list[Span], most: int) -> list[Span]:
    """The first `most` tokens of spans."""
    kept: list[Span] = []
    for start, end in spans:
        taken = min(end - start, most)
        if taken:
            kept.append((start, start + taken))
        most -= taken
    return kept


def _pieces(ids: list[int], *, trained: Bool, texts: TokenTexts | None) -> list[TextPiece]:
    if texts is None:
        return [TextPiece(text=f"{token} ", count=1, control=False) for token in ids]
    changes = np.flatnonzero(np.diff(trained.astype(np.int8))) + 1
    return texts.pieces(ids, breaks=changes.tolist())
