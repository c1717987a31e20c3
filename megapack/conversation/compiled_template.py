"""One compiled template, and what it sees of a conversation."""

import hashlib
import re
from collections.abc import Mapping, Sequence

import jinja2

from megapack.conversation.config import TokenizeConfig
from megapack.conversation.encoder import Encoder
from megapack.conversation.jinja_env import SPAN_END, SPAN_START, compile_template
from megapack.conversation.messages import Conversation, Json
from megapack.conversation.rejection import RejectedError
from megapack.conversation.render import Span
from megapack.errors import ConfigError
from megapack.records.drops import DropReason

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
_RESERVED = "\ufdd0\ufdd1\ufdd2"


class TemplateView:
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

    def hidden(self) -> "TemplateView":
        """The same with typed control tokens hidden."""
        view = object.__new__(TemplateView)
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


class CompiledTemplate:
    """One compiled template."""

    def __init__(self, text: str, *, label: str, config: TokenizeConfig) -> None:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        self.label = f"{label} ({digest})"
        self.has_generation = _GENERATION.search(text) is not None
        try:
            self._compiled = compile_template(text, today=config.template_date)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{self.label}: line {error.lineno}: {error.message}.") from error

    def text(self, view: TemplateView, messages: Sequence[Json], prompted: bool) -> str:  # noqa: FBT001
        """Rendered text without span marks."""
        marked = self._render(view, messages, prompted=prompted)
        return marked.replace(SPAN_START, "").replace(SPAN_END, "")

    def render(self, view: TemplateView, messages: Sequence[Json]) -> tuple[str, list[Span]]:
        """Rendered text and what its generation blocks wrote."""
        before, *blocks = self._render(view, messages, prompted=False).split(SPAN_START)
        pieces, spans, position = [before], [], len(before)
        for block in blocks:
            wrote, _, after = block.partition(SPAN_END)
            spans += [(position, position + len(wrote))] if wrote else []
            position += len(wrote) + len(after)
            pieces += [wrote, after]
        if SPAN_END in before or any(block.count(SPAN_END) != 1 for block in blocks):
            raise RejectedError(
                DropReason.MASK_UNKNOWN,
                f"{self.label}: expected generation blocks side by side, found one inside another.",
            )
        return "".join(pieces), spans

    def _render(self, view: TemplateView, messages: Sequence[Json], *, prompted: bool) -> str:
        try:
            return self._compiled.render(view.variables(messages, prompted=prompted))
        except _FAILURES as error:
            raise RejectedError(
                DropReason.TEMPLATE_ERROR, f"{self.label}: {type(error).__name__}: {error}"
            ) from error


def holds_mark(text: str) -> bool:
    """Whether a text holds a character that marks spans in renders."""
    return any(mark in text for mark in _RESERVED)
