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
_RESERVED = re.compile("[\ufdd0-\ufdd2]")


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

    @property
    def reserved(self) -> bool:
        """Whether any string holds one of the marks."""
        return _holds_reserved(self.typed)

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

    def _render(self, view: TemplateView, messages: Sequence[Json], *, prompted: bool) -> str:
        try:
            return self._compiled.render(view.variables(messages, prompted=prompted))
        except _FAILURES as error:
            raise RejectedError(
                DropReason.TEMPLATE_ERROR, f"{self.label}: {type(error).__name__}: {error}"
            ) from error


def _holds_reserved(value: Json) -> bool:
    if isinstance(value, str):
        return _RESERVED.search(value) is not None
    if isinstance(value, Mapping):
        return any(_holds_reserved(key) or _holds_reserved(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(_holds_reserved(item) for item in value)
