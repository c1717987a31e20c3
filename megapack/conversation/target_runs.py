"""From supervised characters to supervised tokens.

A token is supervised when it overlaps a supervised character. So a token that joins the newline of
a header to the first newline of the answer is supervised whole, and one that joins the end of an
answer to what the template writes next is too: nothing that was to be learnt is lost.

Two ways, one rule: `token_mask` for tokens in any order, with a few numbers per character; and
`overlapping` for tokens in order, which only looks up the edges of the spans.
"""

from collections.abc import Sequence

import numpy as np

from megapack.conversation.encoder import Encoded, EncodedBatch
from megapack.conversation.render import Span
from megapack.layout.runs import Bool, Int64


def token_mask(encoded: Encoded, *, length: int, spans: Sequence[Span]) -> Bool:
    """Which tokens overlap supervised characters.

    Args:
        encoded: tokens of a text.
        length: characters of the text.
        spans: supervised characters of the text.

    Returns:
        bool [n]: True where supervised.
    """
    edges = np.zeros(length + 2, dtype=np.int32)
    for start, end in spans:
        edges[start + 1] += 1
        edges[end + 1] -= 1
    inside = np.cumsum(edges)
    covered = np.cumsum(inside)
    overlap = covered[encoded.ends] > covered[encoded.starts]
    empty = encoded.ends == encoded.starts
    mask: Bool = np.where(empty, inside[encoded.starts + 1] > 0, overlap)
    return mask


def in_order(batch: EncodedBatch) -> bool:
    """Whether every token covers a character and none begins or ends before the one before it."""
    starts, ends = batch.starts, batch.ends
    return bool(
        (ends > starts).all()
        and (starts[1:] >= starts[:-1]).all()
        and (ends[1:] >= ends[:-1]).all()
    )


def overlapping(batch: EncodedBatch, spans: Int64) -> tuple[Int64, Int64]:
    """Tokens that overlap spans, for tokens that are `in_order`.

    Args:
        batch: T tokens of texts.
        spans: int64 [K, 2], characters counted over all texts; none empty.

    Returns:
        int64 [K] each: first token of each span, and one past the last.
    """
    first = np.searchsorted(batch.ends, spans[:, 0], side="right")
    last = np.searchsorted(batch.starts, spans[:, 1], side="left")
    return first.astype(np.int64), last.astype(np.int64)


def joined_runs(first: Int64, last: Int64, text: Int64) -> tuple[Int64, Int64, Int64]:
    """Runs that touch or overlap made one, within each text; empty ones left out.

    Args:
        first: int64 [K], first token of each run, sorted.
        last: int64 [K], one past the last of each, sorted.
        text: int64 [K], the text each is of, sorted.

    Returns:
        The same three, int64 [R] with R <= K.
    """
    kept = last > first
    first, last, text = first[kept], last[kept], text[kept]
    if not first.size:
        return first, last, text
    begins = np.ones(first.size, dtype=np.bool_)
    begins[1:] = (first[1:] > last[:-1]) | (text[1:] != text[:-1])
    at = np.flatnonzero(begins)
    return first[at], last[np.append(at[1:], first.size) - 1], text[at]
