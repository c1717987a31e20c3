"""What a supervised assistant turn is made of: content, reasoning, calls, its end, template text.

Found by provenance. A second render puts traces at the first and last visible character of each
content and reasoning and behind each called function's name. What stands between two of them
belongs to the part that the template wrote it for: tags around reasoning and calls to those, what
follows the last of them to the end of the turn, what precedes the content to the template. Where
such a stretch joins two parts that are treated differently (an empty thinking block and the start
of a call; the end of a call and of the turn), the same turn rendered as a plain answer shows where
one stops. What cannot be told so is refused, never searched for in the text. Costs one render, and
up to three more for a turn with such a stretch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from megapack.conversation.config import LossPart
from megapack.conversation.messages import Json, Role
from megapack.conversation.part_places import PartPlace, UnclearError, part_places
from megapack.conversation.rejection import RejectedError
from megapack.conversation.render import Span
from megapack.conversation.traced_render import TracedRender, trace_parts
from megapack.records.drops import DropReason

_CONTENT, _REASONING, _CALLS = LossPart.CONTENT, LossPart.REASONING, LossPart.TOOL_CALLS
_END, _TEMPLATE = LossPart.END_OF_TURN, LossPart.TEMPLATE_TEXT
# Owners, in order, of what stands between two parts; None is the edge of the turn.
_OWNERS: Mapping[tuple[LossPart | None, LossPart | None], tuple[LossPart, ...]] = {
    (None, _CONTENT): (_TEMPLATE,),
    (None, _REASONING): (_REASONING,),
    (None, _CALLS): (_TEMPLATE, _CALLS),
    (None, None): (_TEMPLATE, _END),
    (_REASONING, _CONTENT): (_REASONING,),
    (_REASONING, _CALLS): (_REASONING, _CALLS),
    (_REASONING, None): (_REASONING, _END),
    (_CONTENT, _CALLS): (_CALLS,),
    (_CONTENT, _REASONING): (_REASONING,),
    (_CONTENT, None): (_END,),
    (_CALLS, _CALLS): (_CALLS,),
    (_CALLS, _CONTENT): (_CALLS,),
    (_CALLS, _REASONING): (_CALLS, _REASONING),
    (_CALLS, None): (_CALLS, _END),
}
_PLAIN = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain:
    """What a template writes around a plain answer; None where it shows no such place."""

    lead: str | None
    middle: str | None
    tail: str

    def before(self, part: LossPart) -> str | None:
        return {_TEMPLATE: self.lead, _REASONING: self.middle}.get(part)

    def after(self, part: LossPart) -> str | None:
        return self.tail if part is _END else None


class PartFinder:
    """Finds the parts of the assistant turns of one render."""

    def __init__(
        self,
        *,
        messages: Sequence[Json],
        whole: str,
        render: Callable[[Sequence[Json]], str],
        parts: Iterable[LossPart],
        template: str,
    ) -> None:
        """Prepare.

        Args:
            messages: as the template sees them.
            whole: their render.
            render: renders messages.
            parts: those that are supervised.
            template: its name, for messages.
        """
        self._messages = list(messages)
        self._whole = whole
        self._render = render
        self._parts = frozenset(parts)
        self._template = template
        self._traced: TracedRender | None = None

    def supervised(self, index: int, spans: Sequence[Span]) -> list[Span]:
        """What of a turn's spans is supervised.

        Args:
            index: the assistant message.
            spans: what is its own in the render, in order.

        Raises:
            RejectedError: MASK_UNKNOWN, naming the template and the message.
        """
        extent = (spans[0][0], spans[-1][1])
        wanted = [span for part, span in self._regions(index, extent) if part in self._parts]
        cut = [(max(a, c), min(b, d)) for a, b in spans for c, d in wanted]
        return [(start, end) for start, end in cut if start < end]

    def _regions(self, index: int, extent: Span) -> list[PartPlace]:
        texts = self._texts(self._messages[index], index=index, extent=extent)
        start, end = extent
        found: list[PartPlace] = []
        before = [part for part, span in texts if span[1] <= start]
        after = [part for part, span in texts if span[0] >= end]
        left, position = before[-1] if before else None, start
        for part, (low, high) in texts[len(before) : len(texts) - len(after)]:
            found += self._gap((left, part), (position, low), index=index, extent=extent)
            found.append((part, (low, high)))
            left, position = part, high
        right = after[0] if after else None
        return [*found, *self._gap((left, right), (position, end), index=index, extent=extent)]

    def _texts(self, message: Mapping[str, Json], *, index: int, extent: Span) -> list[PartPlace]:
        traced = self._traces(index)
        try:
            return part_places(message, index=index, traced=traced, extent=extent)
        except UnclearError as error:
            raise self._unknown(index, str(error)) from error

    def _traces(self, index: int) -> TracedRender:
        if self._traced is None:
            answers = [i for i, m in enumerate(self._messages) if m["role"] == Role.ASSISTANT.value]
            marked = trace_parts(self._messages, indexes=answers)
            self._traced = TracedRender.of(self._text(marked, index=index), ())
        if self._traced.text != self._whole:
            raise self._unknown(index, "the template writes other text around marked words")
        return self._traced

    def _gap(
        self,
        between: tuple[LossPart | None, LossPart | None],
        gap: Span,
        *,
        index: int,
        extent: Span,
    ) -> list[PartPlace]:
        owners = _OWNERS.get(between)
        if gap[0] == gap[1]:
            return []
        if owners is None:
            raise self._unknown(index, f"text between {between[0]} and {between[1]}")
        first, last = owners[0], owners[-1]
        if (first in self._parts) is (last in self._parts):
            return [(first, gap)]
        text = self._whole[slice(*gap)]
        plain = self._plain(index, extent=extent)
        length = None
        if plain is not None:
            length = _length_of_first(text, before=plain.before(first), after=plain.after(last))
        if length is None:
            raise self._unknown(
                index, f"{text.strip()[:40]!r} may be {first.value} as well as {last.value}"
            )
        middle = gap[0] + length
        return [(first, (gap[0], middle)), (last, (middle, gap[1]))]

    def _plain(self, index: int, *, extent: Span) -> _Plain | None:
        """The turn as an answer without calls, in its place or as the last one."""
        message = self._messages[index]
        words = message["content"] if message["content"].strip() else _PLAIN
        plain = {key: value for key, value in message.items() if key != "tool_calls"}
        plain["content"] = words
        start, end = extent
        for upto in (len(self._messages), index + 1):
            rest = self._messages[index + 1 : upto]
            try:
                base = self._whole if rest else self._render(self._messages[:upto])
                marked = trace_parts([*self._messages[:index], plain, *rest], indexes=[index])
                traced = TracedRender.of(self._render(marked), ())
            except RejectedError:
                continue
            known = base[:end] == self._whole[:end] and base[:start] == traced.text[:start]
            if known and traced.text.endswith(base[end:]):
                around = (start, len(traced.text) - len(base) + end)
                return self._around(plain, index=index, traced=traced, extent=around)
        return None

    def _around(
        self, message: Mapping[str, Json], *, index: int, traced: TracedRender, extent: Span
    ) -> _Plain | None:
        try:
            texts = part_places(message, index=index, traced=traced, extent=extent)
        except UnclearError:
            return None
        kinds = [part for part, _ in texts]
        if kinds not in ([_CONTENT], [_REASONING, _CONTENT]):
            return None
        thinks = len(kinds) > 1
        before = traced.text[texts[0][1][1] if thinks else extent[0] : texts[-1][1][0]]
        return _Plain(
            lead=None if thinks else before,
            middle=before if thinks else None,
            tail=traced.text[texts[-1][1][1] : extent[1]],
        )

    def _text(self, messages: Sequence[Json], *, index: int) -> str:
        try:
            return self._render(messages)
        except RejectedError as error:
            raise self._unknown(index, f"rendering marked words failed ({error.detail})") from error

    def _unknown(self, index: int, why: str) -> RejectedError:
        return RejectedError(
            DropReason.MASK_UNKNOWN,
            f"expected to tell the parts of assistant message {index} in the render of "
            f"{self._template}: {why}. Supervise all of tokenize.loss_parts, or put "
            "{% generation %} around what is to be learnt in the template.",
        )


def _length_of_first(text: str, *, before: str | None, after: str | None) -> int | None:
    """Characters of a stretch that belong to its first owner, None when that is not clear."""
    if before is not None and after is not None:
        return len(before) if text == before + after else None
    if before is not None:
        return len(before) if text.startswith(before) else None
    if after is not None:
        return len(text) - len(after) if text.endswith(after) else None
    return None
