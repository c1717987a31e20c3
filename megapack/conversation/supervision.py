"""What of a chat template's render is supervised: whose spans, which turns, which parts.

Spans come from the template's own `{% generation %}` blocks, or from prefix renders where it has
none. Whose turn a block belongs to, and what parts a turn has, is looked at only where the job or
the data supervises one and not the other; what then stays unclear is MASK_UNKNOWN.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from megapack.conversation.compiled_template import CompiledTemplate, TemplateView
from megapack.conversation.config import LossOn, LossPart, TokenizeConfig
from megapack.conversation.encoder import Encoder
from megapack.conversation.messages import Conversation, Role
from megapack.conversation.parts import PartFinder
from megapack.conversation.rejection import RejectedError
from megapack.conversation.render import Span
from megapack.conversation.spans import SpanFinder
from megapack.conversation.switches import trained_turns
from megapack.conversation.traced_render import TracedRender
from megapack.records.drops import DropReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """A conversation and what a template made of it.

    Attributes:
        conversation: checked messages.
        template: the template.
        view: what it saw of them.
        text: what it wrote.
        marked: what its generation blocks wrote.
        traced: the same render with traces, None where nothing asked for it.
    """

    conversation: Conversation
    template: CompiledTemplate
    view: TemplateView
    text: str
    marked: tuple[Span, ...]
    traced: TracedRender | None


class Supervision:
    """Finds the supervised characters of renders."""

    def __init__(self, *, encoder: Encoder, config: TokenizeConfig) -> None:
        self._encoder = encoder
        self._config = config

    def spans(self, rendering: Rendering) -> tuple[Span, ...] | None:
        """Supervised characters, sorted and disjoint; None when every token is supervised.

        Raises:
            RejectedError: MASK_UNKNOWN.
        """
        if self._config.loss_on is LossOn.ALL:
            return None
        trained = trained_turns(rendering.conversation)
        if not trained:
            return ()
        if not rendering.template.has_generation:
            return self._parts(rendering, self._derived(rendering, trained))
        answers = sum(m.role is Role.ASSISTANT for m in rendering.conversation.messages)
        whole = len(self._config.loss_parts) == len(LossPart)
        if whole and len(trained) == answers:
            return rendering.marked
        owners = _owners(rendering)
        if None in owners:
            raise RejectedError(
                DropReason.MASK_UNKNOWN,
                f"{rendering.template.label} marks {len(owners)} spans; cannot tell which belong "
                "to a message whose loss is switched off, or to which part of a message.",
            )
        pairs = list(zip(owners, rendering.marked, strict=True))
        kept = {i: [span for owner, span in pairs if owner == i] for i in trained}
        return self._parts(rendering, {i: spans for i, spans in kept.items() if spans})

    def _derived(self, rendering: Rendering, trained: Sequence[int]) -> dict[int, list[Span]]:
        template, view = rendering.template, rendering.view
        finder = SpanFinder(
            messages=view.messages,
            whole=rendering.text,
            render=lambda messages, prompted: template.text(view, messages, prompted),
            control=self._encoder.control,
            template=template.label,
            end_token=self._encoder.special_tokens.get("eos_token", ""),
        )
        return {index: [span] for index, span in finder.spans(trained).items()}

    def _parts(self, rendering: Rendering, turns: dict[int, list[Span]]) -> tuple[Span, ...]:
        if len(self._config.loss_parts) == len(LossPart):
            return tuple(span for spans in turns.values() for span in spans)
        template, view = rendering.template, rendering.view
        finder = PartFinder(
            messages=view.messages,
            whole=rendering.text,
            render=lambda messages: template.text(view, messages, False),  # noqa: FBT003
            parts=self._config.loss_parts,
            template=template.label,
        )
        return tuple(span for i, spans in turns.items() for span in finder.supervised(i, spans))


def _owners(rendering: Rendering) -> list[int | None]:
    """The message that each marked span belongs to; None where the traces do not tell."""
    messages, traced = rendering.conversation.messages, rendering.traced
    answers = [i for i, message in enumerate(messages) if message.role is Role.ASSISTANT]
    if len(answers) == 1:
        return [answers[0]] * len(rendering.marked)
    if traced is None or traced.text != rendering.text or traced.spans != rendering.marked:
        return [None] * len(rendering.marked)
    last = len(messages) - 1
    return [traced.owner(span, answers=answers, last=last) for span in rendering.marked]
