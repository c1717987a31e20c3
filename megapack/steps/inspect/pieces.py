"""A document as pieces of text, each wholly trained or wholly not."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from megapack.conversation.token_text import TextPiece, TokenTexts
from megapack.steps.inspect.shown import ShownDocument


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


def pieces_of(
    document: ShownDocument, texts: TokenTexts | None, *, most: int
) -> Iterator[MarkedPiece]:
    """The first `most` tokens of a document as pieces.

    A character is cut where the mask cuts it, so that such a fault can be seen.

    Args:
        document: what to show.
        texts: the tokenizer's texts, None for ids.
        most: tokens to show.
    """
    ids = document.tokens[:most].tolist()
    trained = document.trained[:most]
    at = 0
    for piece in _pieces(ids, trained=trained, texts=texts):
        yield MarkedPiece(
            text=piece.text,
            start=at,
            count=piece.count,
            control=piece.control,
            trained=bool(trained[at]),
        )
        at += piece.count


def _pieces(ids: list[int], *, trained: np.ndarray, texts: TokenTexts | None) -> list[TextPiece]:
    if texts is None:
        return [TextPiece(text=f"{token} ", count=1, control=False) for token in ids]
    changes = np.flatnonzero(np.diff(trained.astype(np.int8))) + 1
    return texts.pieces(ids, breaks=changes.tolist())
