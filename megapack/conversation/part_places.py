"""Where the texts of one assistant turn stand in a render: content, reasoning, called names.

Read off the traces at their first and last visible characters. White space around a text is the
person's as far as the person wrote it and it stands there.
"""

from collections.abc import Mapping, Sequence

from megapack.conversation.config import LossPart
from megapack.conversation.messages import Json
from megapack.conversation.render import Span
from megapack.conversation.traced_render import Kind, TracedRender

_TEXTS = (
    (LossPart.CONTENT, "content", Kind.CONTENT_START, Kind.CONTENT),
    (LossPart.REASONING, "reasoning_content", Kind.REASONING_START, Kind.REASONING),
)
_KEYS = {part: key for part, key, _, _ in _TEXTS}

PartPlace = tuple[LossPart, Span]
"""A part of a turn and characters of the render that are it."""


class UnclearError(ValueError):
    """The traces do not tell where a part stands."""


def part_places(
    message: Mapping[str, Json], *, index: int, traced: TracedRender, extent: Span
) -> list[PartPlace]:
    """Texts of a turn in the order of the render; a call stands at the end of its name.

    Args:
        message: an assistant message as the template sees it.
        index: its number.
        traced: a render in which its texts carry traces at both ends.
        extent: first and end of what is the turn's own in that render.

    Raises:
        UnclearError: a text is missing, written twice, or across the edge of the turn.
    """
    places: dict[str, list[int]] = {}
    for place, (number, kind, _) in traced.places:
        if number == index:
            places.setdefault(kind, []).append(place)
    found = [(LossPart.TOOL_CALLS, (place, place)) for place in places.get(Kind.CALL, ())]
    for part, key, first, last in _TEXTS:
        text = message.get(key) or ""
        starts, ends = places.get(first, []), places.get(last, [])
        dropped = part is LossPart.REASONING and not starts and not ends
        if not text.strip() or dropped:
            continue
        if len(starts) != 1 or len(ends) != 1:
            raise UnclearError(f"its {part.value} is not written once and whole")
        found.append((part, (starts[0], ends[0])))
    found.sort(key=lambda item: item[1])
    edges = [edge for _, span in found for edge in span]
    across = any(low < edge < high for edge in extent for _, (low, high) in found)
    if edges != sorted(edges) or across:
        raise UnclearError("its parts do not stand one after the other")
    return _with_white_space(found, message=message, whole=traced.text, extent=extent)


def _with_white_space(
    texts: Sequence[PartPlace], *, message: Mapping[str, Json], whole: str, extent: Span
) -> list[PartPlace]:
    found: list[PartPlace] = []
    for number, (part, (start, end)) in enumerate(texts):
        low = max(found[-1][1][1] if found else 0, extent[0] if start >= extent[0] else 0)
        high = texts[number + 1][1][0] if number + 1 < len(texts) else len(whole)
        high = min(high, extent[1]) if end <= extent[1] else high
        text = message.get(_KEYS.get(part, "")) or ""
        lead = text[: len(text) - len(text.lstrip())]
        trail = text[len(text.rstrip()) :]
        start -= _common(whole[low:start][::-1], lead[::-1])
        end += _common(whole[end:high], trail)
        found.append((part, (start, end)))
    return found


def _common(one: str, other: str) -> int:
    """Length of the common start of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
