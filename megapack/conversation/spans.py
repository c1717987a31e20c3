"""Assistant spans of a template without `{% generation %}`, found by rendering prefixes.

An answer starts where the prompt before it ends and ends where the render of the conversation up to
it ends. Both must be prefixes of the whole render, else nothing is guessed: MASK_UNKNOWN. Two kinds
of template need more. One without a generation prompt: the header is what stands before a probe
put in the answer's place. One that renders a turn differently when it is the last (thinking is cut
from earlier turns): the end is found from a probe in the whole render. White space that a template
writes after its last control token is not part of the answer; an end that other text follows there,
or that an end token follows, is refused. Costs three renders an answer.
"""

from collections.abc import Callable, Sequence

from megapack.conversation.control import ControlTokens
from megapack.conversation.messages import Json, Role
from megapack.conversation.rejection import RejectedError
from megapack.conversation.render import Span
from megapack.records.drops import DropReason

_PROBE = "\ufdd2"

Renderer = Callable[[Sequence[Json], bool], str]
"""Renders messages, with or without a generation prompt."""


class SpanFinder:
    """Finds where the answers of one conversation stand in its render."""

    def __init__(
        self,
        *,
        messages: Sequence[Json],
        whole: str,
        render: Renderer,
        control: ControlTokens,
        template: str,
        end_token: str = "",
    ) -> None:
        self._messages = list(messages)
        self._whole = whole
        self._render = render
        self._control = control
        self._template = template
        self._end_token = end_token

    def spans(self) -> dict[int, Span]:
        """Span of each assistant message, by its index.

        Raises:
            RejectedError: MASK_UNKNOWN, naming the template and the message.
        """
        found: dict[int, Span] = {}
        before = 0
        for index, message in enumerate(self._messages):
            if message["role"] != Role.ASSISTANT.value:
                continue
            start = self._start(index)
            end = self._trimmed(start, self._end(index, start=start))
            if not before <= start < end:
                raise self._unknown(index, f"it would span [{start}, {end}) after {before}")
            self._check_end(index, start=start, end=end)
            found[index] = (start, end)
            before = end
        return found

    def _start(self, index: int) -> int:
        prompt = self._text(self._messages[:index], index=index, prompted=True)
        bare = self._text(self._messages[:index], index=index, prompted=False)
        if prompt == bare:
            probe = self._text(
                [*self._messages[:index], {"role": Role.ASSISTANT.value, "content": _PROBE}],
                index=index,
                prompted=False,
            )
            prompt = probe.partition(_PROBE)[0]
            if _PROBE not in probe or not prompt.startswith(bare):
                raise self._unknown(index, "the template has no generation prompt")
        if not self._whole.startswith(prompt):
            raise self._unknown(index, "the prompt before it is no prefix of the whole render")
        return len(prompt)

    def _end(self, index: int, *, start: int) -> int:
        upto = self._text(self._messages[: index + 1], index=index, prompted=False)
        if self._whole.startswith(upto) and len(upto) > start:
            return len(upto)
        message = self._messages[index]
        if not message["content"].strip():
            raise self._unknown(index, "its render depends on what follows it")
        probed = {**message, "content": _PROBE}
        alone = self._text([*self._messages[:index], probed], index=index, prompted=False)
        inside = self._text(
            [*self._messages[:index], probed, *self._messages[index + 1 :]],
            index=index,
            prompted=False,
        )
        tail = alone.rpartition(_PROBE)[2]
        head, mark, rest = inside.partition(_PROBE)
        known = mark and _PROBE not in rest and _PROBE in alone and rest.startswith(tail)
        if not known or not self._whole.startswith(head) or not self._whole.endswith(rest):
            raise self._unknown(index, "its render depends on what follows it")
        return len(self._whole) - len(rest) + len(tail)

    def _trimmed(self, start: int, end: int) -> int:
        """End of the last control token when only white space follows it."""
        text = self._whole[start:end]
        last = self._control.last_end(text)
        return start + last if last and not text[last:].strip() else end

    def _check_end(self, index: int, *, start: int, end: int) -> None:
        """Refuse an end that stops short of the end token, or runs into the next header."""
        if self._end_token and self._whole[end:].lstrip().startswith(self._end_token):
            raise self._unknown(index, f"{self._end_token!r} follows it only when a turn follows")
        text = self._whole[start:end]
        last = self._control.last_end(text)
        if last and text[last:].strip():
            raise self._unknown(
                index, f"{text[last:].strip()[:40]!r} follows its last control token"
            )

    def _text(self, messages: Sequence[Json], *, index: int, prompted: bool) -> str:
        try:
            return self._render(messages, prompted)
        except RejectedError as error:
            raise self._unknown(index, f"rendering its prefix failed ({error.detail})") from error

    def _unknown(self, index: int, why: str) -> RejectedError:
        return RejectedError(
            DropReason.MASK_UNKNOWN,
            f"expected to find assistant message {index} in the render of {self._template}: "
            f"{why}. Put {{% generation %}} around the assistant's text in the template.",
        )
