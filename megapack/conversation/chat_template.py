"""Format `chat_template`: any Hugging Face chat template, rendered once over the whole chat.

Supervised characters come from the template's own `{% generation %}` blocks, or from prefix
renders where it has none. What people typed is told from what the template wrote by provenance.
"""

import re
from dataclasses import replace

from megapack.conversation.compiled_template import CompiledTemplate, TemplateView, holds_mark
from megapack.conversation.config import EmptyThinking, LossOn, OnLossy, TokenizeConfig
from megapack.conversation.encoder import Encoder, typed_control
from megapack.conversation.messages import Conversation, Role
from megapack.conversation.rejection import RejectedError
from megapack.conversation.render import Render, Span
from megapack.conversation.spans import SpanFinder
from megapack.conversation.traced_render import TracedRender, has_losable, trace_messages
from megapack.errors import ConfigError
from megapack.records.drops import DropReason

_EMPTY_THINKING = re.compile(r"\s*<think>\s*</think>\s*")


class ChatTemplatePrompt:
    """Renders conversations through a Jinja chat template."""

    def __init__(self, *, encoder: Encoder, config: TokenizeConfig) -> None:
        """Compile the job's template, or the tokenizer's.

        Raises:
            ConfigError: there is no template, or it does not compile.
        """
        self._config = config
        self._encoder = encoder
        self._typed = typed_control(encoder, config=config)
        texts = dict(encoder.chat_templates)
        if config.chat_template is not None:
            texts = {"default": config.chat_template}
        if "default" not in texts:
            raise ConfigError(
                "format chat_template: expected a chat template in the job or in the tokenizer's "
                f"folder, found {sorted(texts) or 'none'}. Set tokenize.chat_template."
            )
        origin = "the job's" if config.chat_template is not None else "the tokenizer's"
        self._templates = {
            name: CompiledTemplate(text, label=f"{origin} chat template {name!r}", config=config)
            for name, text in texts.items()
        }

    def render(self, conversation: Conversation, *, piece: int = 0) -> Render:
        """Render a conversation.

        Args:
            conversation: checked messages.
            piece: number of the piece; the system message of later ones is a repetition.

        Raises:
            RejectedError: TEMPLATE_ERROR, MASK_UNKNOWN or LOSSY_FORMAT.
        """
        template = self._template_for(conversation)
        view = TemplateView(conversation, config=self._config, encoder=self._encoder)
        seen = conversation.dumps()
        if holds_mark(seen):
            raise RejectedError(
                DropReason.MASK_UNKNOWN,
                "expected text without the noncharacters U+FDD0 to U+FDD2, which mark spans.",
            )
        typed = self._typed.may_occur_in(seen) and self._typed.occur_in(view.typed)
        shown = view.hidden() if typed else view
        text, spans = template.render(shown, shown.messages)
        if typed:
            plain, _ = template.render(view, view.messages)
            if self._encoder.control.reveal(text) != plain:
                raise RejectedError(
                    DropReason.MASK_UNKNOWN,
                    f"{template.label} changes what it writes where a message holds a control "
                    "token; cannot tell typed control tokens from the template's.",
                )
        traced = self._traced(conversation, template=template, shown=shown)
        losses = self._losses(conversation, template=template, traced=traced)
        kept = self._supervised(
            conversation, template=template, shown=shown, found=(text, spans), traced=traced
        )
        repeated = _repeated(template, shown, text) if piece else 0
        render = self._finish(text, spans=kept, typed=typed, repeated=repeated)
        return replace(render, losses=tuple(losses)) if losses else render

    def _traced(
        self, conversation: Conversation, *, template: CompiledTemplate, shown: TemplateView
    ) -> TracedRender | None:
        """The render with traces; None when nothing asks for it or the template fails on it."""
        masked = self._config.empty_thinking is EmptyThinking.MASK
        owned = masked or any(message.loss is False for message in conversation.messages)
        if not has_losable(conversation) and not (owned and template.has_generation):
            return None
        try:
            return TracedRender.of(*template.render(shown, trace_messages(shown.messages)))
        except RejectedError:
            return None

    def _losses(
        self,
        conversation: Conversation,
        *,
        template: CompiledTemplate,
        traced: TracedRender | None,
    ) -> list[str]:
        losses = traced.losses(conversation) if traced is not None else []
        if losses and self._config.on_lossy is OnLossy.REJECT:
            raise RejectedError(
                DropReason.LOSSY_FORMAT,
                f"{template.label} leaves out {'; '.join(losses)}. Use a template that writes "
                "them, or set on_lossy = keep.",
            )
        return losses

    def _template_for(self, conversation: Conversation) -> CompiledTemplate:
        if conversation.tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        return self._templates["default"]

    def _supervised(
        self,
        conversation: Conversation,
        *,
        template: CompiledTemplate,
        shown: TemplateView,
        found: tuple[str, list[Span]],
        traced: TracedRender | None,
    ) -> tuple[Span, ...] | None:
        text, _ = found
        if self._config.loss_on is LossOn.ALL:
            return None
        by_message: list[tuple[int | None, Span]]
        if template.has_generation:
            by_message = _owned(conversation, found=found, traced=traced)
        else:
            by_message = list(
                SpanFinder(
                    messages=shown.messages,
                    whole=text,
                    render=lambda messages, prompted: template.text(shown, messages, prompted),
                    control=self._encoder.control,
                    template=template.label,
                    end_token=self._encoder.special_tokens.get("eos_token", ""),
                )
                .spans()
                .items()
            )
        switched_off = any(message.loss is False for message in conversation.messages)
        if switched_off and any(index is None for index, _ in by_message):
            raise RejectedError(
                DropReason.MASK_UNKNOWN,
                f"{template.label} marks {len(by_message)} spans; cannot tell which belong to a "
                "message whose loss is switched off.",
            )
        return tuple(
            self._after_empty_thinking(span, text=text, index=index, conversation=conversation)
            for index, span in by_message
            if index is None or conversation.messages[index].loss is not False
        )

    def _after_empty_thinking(
        self, span: Span, *, text: str, index: int | None, conversation: Conversation
    ) -> Span:
        if self._config.empty_thinking is EmptyThinking.SUPERVISE:
            return span
        block = _EMPTY_THINKING.match(text, *span)
        if block is None:
            return span
        wrote = {
            bool(_EMPTY_THINKING.match(message.content))
            for number, message in enumerate(conversation.messages)
            if message.role is Role.ASSISTANT and index in (None, number)
        }
        if len(wrote) > 1:
            raise RejectedError(
                DropReason.MASK_UNKNOWN,
                "cannot tell whether the data or the template wrote the empty thinking block at "
                f"character {span[0]}; set empty_thinking = supervise.",
            )
        return span if True in wrote else (block.end(), span[1])

    def _finish(
        self, text: str, *, spans: tuple[Span, ...] | None, typed: bool, repeated: int
    ) -> Render:
        if typed:
            text, moved = self._encoder.control.protect(text, (*(spans or ()), (0, repeated)))
            spans, repeated = None if spans is None else moved[:-1], moved[-1][1]
        return Render(
            text=text, spans=spans, protected=typed, begins_with_bos=True, repeated=repeated
        )


def _owned(
    conversation: Conversation,
    *,
    found: tuple[str, list[Span]],
    traced: TracedRender | None,
) -> list[tuple[int | None, Span]]:
    """Marked spans with the message each belongs to; None where the traces do not tell."""
    text, marked = found
    if traced is None or traced.text != text or list(traced.spans) != marked:
        return [(None, span) for span in marked]
    answers = [i for i, m in enumerate(conversation.messages) if m.role is Role.ASSISTANT]
    last = len(conversation.messages) - 1
    return [(traced.owner(span, answers=answers, last=last), span) for span in marked]


def _repeated(template: CompiledTemplate, view: TemplateView, text: str) -> int:
    """Characters at the head of a later piece that the first piece had too."""
    head = []
    for message in view.messages:
        if message["role"] != Role.SYSTEM.value:
            break
        head.append(message)
    if not head and not view.tools:
        return 0
    probe = [*head, {"role": Role.USER.value, "content": "\ufdd2"}]
    before = template.text(view, probe, False).partition("\ufdd2")[0]  # noqa: FBT003
    return len(before) if text.startswith(before) else 0
