"""`Render`: a conversation as text, with where its supervised characters stand."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from megapack.conversation.config import LossPart
from megapack.conversation.control import ControlTokens

Span = tuple[int, int]
"""Half-open character span [start, end)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Render:
    """What is encoded.

    Attributes:
        text: the whole conversation.
        spans: supervised characters, sorted and disjoint; None when every token is supervised.
        protected: True when `text` is for the twin tokenizer, because people typed control
            tokens.
        begins_with_bos: True when a tokenizer's own BOS belongs in front unless it is there.
        losses: what the format lost of the conversation and was told to keep going.
        repeated: characters from the start that repeat an earlier piece and are not supervised.
    """

    text: str
    spans: tuple[Span, ...] | None
    protected: bool = False
    begins_with_bos: bool = False
    losses: tuple[str, ...] = ()
    repeated: int = 0


class Segment(NamedTuple):
    """A stretch of a render with one origin; a tuple, as a conversation has dozens.

    Attributes:
        text: the characters.
        part: what of a supervised turn they are; None outside of one.
        typed: True when people wrote them, False when the format did.
        system: True when they belong to the system message at the head.
    """

    text: str
    part: LossPart | None = None
    typed: bool = False
    system: bool = False


def join_segments(
    segments: Iterable[Segment], *, control: ControlTokens, parts: Collection[LossPart]
) -> Render:
    """Put segments together; control tokens in typed ones stay text.

    Args:
        segments: in order.
        control: the tokenizer's control tokens.
        parts: those that are supervised.
    """
    kept = [segment for segment in segments if segment.text]
    typed = [segment.text for segment in kept if segment.typed]
    # One search through all of them rules out most conversations.
    protected = control.may_occur_in("\n".join(typed)) and any(map(control.occur_in, typed))
    if protected:
        kept = [s._replace(text=control.hide(s.text)) if s.typed else s for s in kept]
    spans: list[Span] = []
    # The head is measured here and counts as repeated only in later pieces.
    position = repeated = 0
    for shown, part, _, system in kept:
        end = position + len(shown)
        if part is not None and part in parts:
            if spans and spans[-1][1] == position:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((position, end))
        if system and repeated == position:
            repeated = end
        position = end
    text, moved = "".join([segment.text for segment in kept]), tuple(spans)
    if protected:
        text, edges = control.protect(text, (*spans, (0, repeated)))
        moved, repeated = edges[:-1], edges[-1][1]
    return Render(text=text, spans=moved, protected=protected, repeated=repeated)
