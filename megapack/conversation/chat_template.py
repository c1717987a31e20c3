"""Format `chat_template`: any Hugging Face chat template, rendered once over the whole chat.

Supervised characters come from the template's own `{% generation %}` blocks, or from prefix
renders where it has none. What people typed is told from what the template wrote by provenance.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.nodes

from megapack.conversation.config import EmptyThinking, LossOn, TokenizeConfig
from megapack.conversation.encoder import Encoder, typed_control
from megapack.conversation.jinja_env import SPAN_END, SPAN_START, compile_template
from megapack.conversation.messages import Conversation, Json, Role
from megapack.conversation.rejection import RejectedError
from megapack.conversation.render import Render, Span
from megapack.conversation.spans import SpanFinder
from megapack.errors import ConfigError
from megapack.records.drops import DropReason

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_EMPTY_THINKING = re.compile(r"\s*<think>\s*</think>\s*")
_RESERVED = re.compile("[\ufdd0-\ufdd2]")


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
            name: _Template(text, label=f"{origin} chat template {name!r}", config=config)
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
        view = _View(conversation, config=self._config, encoder=self._encoder)
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

    def _template_for(self, conversation: Conversation) -> "_Template":
        if conversation.tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        return self._templates["default"]

    def _supervised(
        self,
        conversation: Conversation,
        *,
        template: "_Template",
        shown: "_View",
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


class _View:
    """What a template sees of a conversation."""

    def __init__(
        self, conversation: Conversation, *, config: TokenizeConfig, encoder: Encoder
    ) -> None:
        self.messages: list[Json] = [m.for_template() for m in conversation.messages]
        self.tools: list[Json] | None = list(conversation.tools) or None
        self.kwargs: Mapping[str, Json] = conversation.template_kwargs
        self._config = config
        self._encoder = encoder

    @property
    def typed(self) -> Json:
        """Everything that came with the record."""
        return [self.messages, self.tools, dict(self.kwargs)]

    @property
    def reserved(self) -> bool:
        """Whether any string holds one of the marks."""
        return _holds_reserved(self.typed)

    def hidden(self) -> "_View":
        """The same with typed control tokens hidden."""
        view = object.__new__(_View)
        view._config, view._encoder = self._config, self._encoder
        hide = self._encoder.control.hide
        view.messages = [
            {key: value if key == "role" else hide(value) for key, value in message.items()}
            for message in self.messages
        ]
        view.tools, view.kwargs = hide(self.tools), hide(dict(self.kwargs))
        return view

    def variables(self, messages: Sequence[Json], *, prompted: bool) -> dict[str, Json]:
        """Variables of a render; the row's own values win over the job's."""
        return {
            **self._encoder.special_tokens,
            **self._config.template_kwargs,
            **self.kwargs,
            "messages": list(messages),
            "tools": self.tools,
            "documents": None,
            "add_generation_prompt": prompted,
        }


class _Template:
    """One compiled template."""

    def __init__(self, text: str, *, label: str, config: TokenizeConfig) -> None:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        self.label = f"{label} ({digest})"
        self.has_generation = _GENERATION.search(text) is not None
        try:
            self._compiled = compile_template(text, today=config.template_date)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{self.label}: line {error.lineno}: {error.message}.") from error

    def text(self, view: _View, messages: Sequence[Json], prompted: bool) -> str:  # noqa: FBT001
        """Rendered text without span marks."""
        marked = self._render(view, messages, prompted=prompted)
        return marked.replace(SPAN_START, "").replace(SPAN_END, "")

    def render(self, view: _View, messages: Sequence[Json]) -> tuple[str, list[Span]]:
        """Rendered text and what its generation blocks wrote."""
        marked = self._render(view, messages, prompted=False)
        pieces, spans, position, opened = [], [], 0, -1
        for piece in re.split(f"([{SPAN_START}{SPAN_END}])", marked):
            if piece == SPAN_START and opened < 0:
                opened = position
            elif piece == SPAN_END and opened >= 0:
                spans += [(opened, position)] if position > opened else []
                opened = -1
            elif piece in (SPAN_START, SPAN_END):
                raise RejectedError(
                    DropReason.MASK_UNKNOWN,
                    f"{self.label}: expected generation blocks side by side, found one inside "
                    "another.",
                )
            else:
                pieces.append(piece)
                position += len(piece)
        return "".join(pieces), spans

    def _render(self, view: _View, messages: Sequence[Json], *, prompted: bool) -> str:
        try:
            return self._compiled.render(view.variables(messages, prompted=prompted))
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise RejectedError(
                DropReason.TEMPLATE_ERROR, f"{self.label}: {type(error).__name__}: {error}"
            ) from error


def _holds_reserved(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    if isinstance(value, str):
        return _RESERVED.search(value) is not None
    if isinstance(value, Mapping):
        return any(_holds_reserved(key) or _holds_reserved(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(_holds_reserved(item) for item in value)


def _repeated(template: _Template, view: _View, text: str) -> int:
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
