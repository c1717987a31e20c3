"""Places in a render that no prefix shows: found from what follows a text in another render.

A template that renders a turn differently once others follow (thinking is cut from earlier turns)
makes renders of a prefix that are no prefixes of the whole. But what stands between the last text
of a message and the end of such a render is what stands there in the whole too, or nothing is
known. Traces say where the last text is. Costs a traced render of the whole, once, and one a place.
"""

from collections.abc import Callable, Sequence

from megapack.conversation.messages import Json
from megapack.conversation.rejection import RejectedError
from megapack.conversation.traced_render import Trace, TracedRender, trace_messages

Renderer = Callable[[Sequence[Json], bool], str]
"""Renders messages, with or without a generation prompt."""


class Anchors:
    """The last text of each message in the render of a whole conversation."""

    def __init__(self, *, messages: Sequence[Json], whole: str, render: Renderer) -> None:
        self._messages = messages
        self._whole = whole
        self._render = render
        self._traced: TracedRender | None = None

    def place_after(
        self, anchor: int, messages: Sequence[Json], *, prompted: bool, before: str = ""
    ) -> int | None:
        """Where what follows a message's last text in another render ends in the whole one.

        Args:
            anchor: the message.
            messages: rendered for comparison; the message is one of them.
            prompted: whether with a generation prompt.
            before: where it ends in that render; its end by default.

        Returns:
            A character position in the whole render, None when the two differ there or the
            template writes other text where traces are.
        """
        try:
            if self._traced is None:
                self._traced = self._of(self._messages, prompted=False)
            part = self._of(messages, prompted=prompted)
        except RejectedError:
            return None
        here, there = _last(self._traced, anchor), _last(part, anchor)
        if here is None or there is None or here[1] != there[1]:
            return None
        tail = part.text[there[0] :]
        if before:
            tail, found, _ = tail.partition(before)
            if not found:
                return None
        known = self._traced.text == self._whole and self._whole.startswith(tail, here[0])
        return here[0] + len(tail) if known else None

    def _of(self, messages: Sequence[Json], *, prompted: bool) -> TracedRender:
        return TracedRender.of(self._render(trace_messages(messages), prompted), ())


def _last(traced: TracedRender, message: int) -> tuple[int, Trace] | None:
    places = [(place, trace) for place, trace in traced.places if trace[0] == message]
    return places[-1] if places else None
