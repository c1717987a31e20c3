"""Format `chat_template`: any Hugging Face chat template, rendered once over the whole chat.

What is supervised is decided in `supervision`. What people typed is told from what the template
wrote by provenance.
"""

from collections.abc import Sequence
from dataclasses import replace

from megapack.conversation.compiled_template import CompiledTemplate, TemplateView, holds_mark
from megapack.conversation.config import LossPart, OnLossy, TokenizeConfig
from megapack.conversation.encoder import Encoder, typed_control
from megapack.conversation.messages import Conversation, Role
from megapack.conversation.rejection import RejectedError
from megapack.conversation.render import Render, Span
from megapack.conversation.supervision import Rendering, Supervision
from megapack.conversation.switches import trained_turns
from megapack.conversation.traced_render import (
    TracedRender,
    has_losable,
    trace_messages,
    unseen_systems,
)
from megapack.errors import ConfigError
from megapack.records.drops import DropReason


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
        unseen = unseen_systems(shown.messages, text)
        traced = self._traced(conversation, template=template, shown=shown, unseen=unseen)
        losses = traced.losses(conversation, systems=unseen) if traced is not None else []
        self._check_losses(losses, template=template)
        rendering = Rendering(
            conversation=conversation,
            template=template,
            view=shown,
            text=text,
            marked=tuple(spans),
            traced=traced,
        )
        kept = Supervision(encoder=self._encoder, config=self._config).spans(rendering)
        repeated = _repeated(template, shown, text) if piece else 0
        render = self._finish(text, spans=kept, typed=typed, repeated=repeated)
        return replace(render, losses=tuple(losses)) if losses else render

    def _traced(
        self,
        conversation: Conversation,
        *,
        template: CompiledTemplate,
        shown: TemplateView,
        unseen: Sequence[int],
    ) -> TracedRender | None:
        """The render with traces; None when nothing asks for it or the template fails on it."""
        answers = sum(message.role is Role.ASSISTANT for message in conversation.messages)
        trained = len(trained_turns(conversation))
        choosy = trained < answers or len(self._config.loss_parts) < len(LossPart)
        owned = template.has_generation and choosy and trained and answers > 1
        if not (owned or unseen or has_losable(conversation)):
            return None
        traced = trace_messages(shown.messages, systems=unseen)
        try:
            return TracedRender.of(*template.render(shown, traced))
        except RejectedError:
            return None

    def _check_losses(self, losses: Sequence[str], *, template: CompiledTemplate) -> None:
        if losses and self._config.on_lossy is OnLossy.REJECT:
            raise RejectedError(
                DropReason.LOSSY_FORMAT,
                f"{template.label} leaves out {'; '.join(losses)}. Use a template that writes "
                "them, or set on_lossy = keep.",
            )

    def _template_for(self, conversation: Conversation) -> CompiledTemplate:
        if conversation.tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        return self._templates["default"]

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
