"""Assistant spans of a template without `{% generation %}`, found by rendering prefixes.

An answer starts where the prompt before it ends and ends where the render of the conversation up to
it ends. Both must be prefixes of the whole render, or be known from what follows a text in it
(`anchors`), else nothing is guessed: MASK_UNKNOWN. Without a generation prompt the header is what
stands before a probe put in the answer's place. White space that a template writes after its last
control token is not part of the answer; an end that other text follows there, or that an end token
follows, is refused. So is a template that writes the next user's header at the end of an answer,
which a chat of two probes shows. Costs three renders of a prefix for each answer that is asked for,
less where prefixes are the same.
"""

from collections.abc import Collection, Sequence

from megapack.conversation.anchors import Anchors, Renderer
from megapack.conversation.control import ControlTokens
from megapack.conversation.messages import Json, Role
from megapack.conversation.rejection import RejectedError
from megapack.conversation.render import Span
from megapack.records.drops import DropReason

_PROBE = "\ufdd2"


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
        self._anchors = Anchors(messages=self._messages, whole=whole, render=render)
        self._prefixes = {(len(self._messages), False): whole}

    def spans(self, wanted: Collection[int]) -> dict[int, Span]:
        """Span of each wanted assistant message, by its index.

        Raises:
            RejectedError: MASK_UNKNOWN, naming the template and the message.
        """
        found: dict[int, Span] = {}
        before = 0
        self._check_headers(min(wanted))
        for index in sorted(wanted):
            start = self._start(index)
            end = self._trimmed(start, self._end(index, start=start))
            if not before <= start < end:
                raise self._unknown(index, f"it would span [{start}, {end}) after {before}")
            self._check_end(index, start=start, end=end)
            found[index] = (start, end)
            before = end
        return found

    def _start(self, index: int) -> int:
        prompt = self._prefix(index, index=index, prompted=True)
        bare = self._prefix(index, index=index, prompted=False)
        messages, prompted, before = self._messages[:index], True, ""
        if prompt == bare:
            messages = [*messages, {"role": Role.ASSISTANT.value, "content": _PROBE}]
            prompted, before = False, _PROBE
            probe = self._text(messages, index=index, prompted=False)
            prompt = probe.partition(_PROBE)[0]
            if _PROBE not in probe or not prompt.startswith(bare):
                raise self._unknown(index, "the template has no generation prompt")
        if self._whole.startswith(prompt):
            return len(prompt)
        start = self._anchors.place_after(index - 1, messages, prompted=prompted, before=before)
        if start is None:
            raise self._unknown(index, "the prompt before it is no prefix of the whole render")
        return start

    def _end(self, index: int, *, start: int) -> int:
        upto = self._prefix(index + 1, index=index, prompted=False)
        if self._whole.startswith(upto) and len(upto) > start:
            return len(upto)
        end = self._anchors.place_after(index, self._messages[: index + 1], prompted=False)
        if end is None:
            raise self._unknown(index, "its render depends on what follows it")
        return end

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

    def _check_headers(self, index: int) -> None:
        """Refuse a template that ends an answer with the header of the turn that may follow.

        Words such as 'USER:' are known only from the line in front of a user's text.
        """
        probes = [
            {"role": Role.USER.value, "content": _PROBE},
            {"role": Role.ASSISTANT.value, "content": _PROBE},
        ]
        try:
            head, *_, tail = self._render(probes, False).split(_PROBE)  # noqa: FBT003
        except (RejectedError, ValueError):
            return
        header = head[self._control.last_end(head) :].strip().rpartition("\n")[2]
        if header and tail.rstrip().endswith(header):
            raise self._unknown(index, f"it ends with {header!r}, the header of the next turn")

    def _prefix(self, length: int, *, index: int, prompted: bool) -> str:
        key = (length, prompted)
        if key not in self._prefixes:
            self._prefixes[key] = self._text(
                self._messages[:length], index=index, prompted=prompted
            )
        return self._prefixes[key]

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
