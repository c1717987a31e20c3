"""Format `chat_template`: any Hugging Face chat template, rendered once over the whole chat.

Supervised characters come from the template's own `{% generation %}` blocks, or from prefix
renders where it has none. What people typed is told from what the template wrote by provenance.
"""

import re
from collections.abc import Sequence

from megapack.conversation.compiled_template import CompiledTemplate, TemplateView
from megapack.conversation.config import EmptyThinking, LossOn, TokenizeConfig
from megapack.conversation.encoder import Encoder, typed_control
from megapack.conversation.messages import Conversation, Role
from megapack.conversation.rejection import RejectedError
from megapack.conversation.render import Render, Span
from megapack.conversation.spans import SpanFinder
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
        if view.reserved:
            raise RejectedError(
                DropReason.MASK_UNKNOWN,
                "expected text without the noncharacters U+FDD0 to U+FDD2, which mark spans.",
            )
        typed = self._typed.occur_in(view.typed)
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
        kept = self._supervised(conversation, template=template, shown=shown, found=(text, spans))
        repeated = _repeated(template, shown, text) if piece else 0
        return self._finish(text, spans=kept, typed=typed, repeated=repeated)

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
    ) -> tuple[Span, ...] | None:
        text, marked = found
        if self._config.loss_on is LossOn.ALL:
            return None
        answers = [i for i, m in enumerate(conversation.messages) if m.role is Role.ASSISTANT]
        by_message: list[tuple[int | None, Span]]
        if template.has_generation:
            paired = len(marked) == len(answers)
            indexes: Sequence[int | None] = answers if paired else [None] * len(marked)
            by_message = list(zip(indexes, marked, strict=True))
        else:
            by_message = list(
                SpanFinder(
                    messages=shown.messages,
                    whole=text,
                    render=lambda messages, prompted: template.text(shown, messages, prompted),
                    control=self._encoder.control,
                    template=template.label,
                )
                .spans()
                .items()
            )
        switched_off = any(message.loss is False for message in conversation.messages)
        if switched_off and any(index is None for index, _ in by_message):
            raise RejectedError(
                DropReason.MASK_UNKNOWN,
                f"{template.label} marks {len(marked)} spans for {len(answers)} assistant "
                "messages; cannot tell which belongs to a message whose loss is switched off.",
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
        if index is not None and _EMPTY_THINKING.match(conversation.messages[index].content):
            return span
        block = _EMPTY_THINKING.match(text, *span)
        return (block.end(), span[1]) if block else span

    def _finish(
        self, text: str, *, spans: tuple[Span, ...] | None, typed: bool, repeated: int
    ) -> Render:
        if typed:
            text, moved = self._encoder.control.protect(text, (*(spans or ()), (0, repeated)))
            spans, repeated = None if spans is None else moved[:-1], moved[-1][1]
        return Render(
            text=text, spans=spans, protected=typed, begins_with_bos=True, repeated=repeated
        )


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
