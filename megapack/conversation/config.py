"""Choices of the tokenize step: format, what is supervised, what happens to what does not fit."""

from datetime import date
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class PromptFormat(StrEnum):
    """How a conversation becomes tokens."""

    NEMOTRON_H_ALIGNED = "nemotron-h-aligned"
    NEMOTRON_NANO_V2 = "nemotron-nano-v2"
    IDENTITY = "identity"
    CHAT_TEMPLATE = "chat_template"


class LossOn(StrEnum):
    """Which tokens are supervised."""

    ASSISTANT = "assistant"
    ALL = "all"


class OnLossy(StrEnum):
    """What happens to a conversation of which the format would lose or damage content."""

    REJECT = "reject"
    KEEP = "keep"


class TypedControlTokens(StrEnum):
    """How control tokens that people typed into messages are encoded."""

    TEXT = "text"
    CONTROL = "control"


class LossTurns(StrEnum):
    """Which assistant turns are supervised; a turn switched off in the data never is."""

    ALL = "all"
    LAST = "last"
    NONE = "none"


class LossPart(StrEnum):
    """What a supervised assistant turn is made of; every character of it is one of these.

    `content`, `reasoning` and `tool_calls` are what the data holds, the last two with the tags that
    the template writes around them. `end_of_turn` is what follows the last of them, `template_text`
    what stands in front of them and belongs to none: an empty thinking block, a header.
    """

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_CALLS = "tool_calls"
    END_OF_TURN = "end_of_turn"
    TEMPLATE_TEXT = "template_text"


class LongDocumentPolicy(StrEnum):
    """What happens to a document of more than `max_document_tokens` tokens."""

    SPLIT = "split"
    TRUNCATE = "truncate"
    DROP = "drop"
    ERROR = "error"


class Engine(StrEnum):
    """What turns texts into tokens; decides speed alone, the tokens are the same."""

    AUTO = "auto"
    REFERENCE = "reference"
    FAST = "fast"


class TokenizeConfig(BaseModel):
    """Settings of the tokenize step.

    Attributes:
        format: prompt format; a source may name its own.
        loss_on: what is supervised: assistant turns, or every token.
        loss_turns: which assistant turns; the last is the last of the conversation, also of one
            that is split. Under `none` documents without targets are kept, for extraction.
        loss_parts: which parts of those turns; all by default. Under `loss_on = all` both must be
            left alone.
        on_lossy: what happens where a Megatron format or a chat template would lose content.
        long_documents: policy for documents that are too long; has no default, because it
            decides what is lost.
        max_document_tokens: longest document in tokens; None means the row length + 1, the
            longest that fits a row (its last token is only a label).
        chat_template: Jinja text that overrides the tokenizer's own template, for
            `chat_template`.
        template_kwargs: values handed to the chat template; a row's own win.
        template_date: the day that a template's `strftime_now` sees. None refuses templates that
            ask for the day: the same job would give other tokens tomorrow.
        typed_control_tokens: `text` encodes control tokens found in messages as plain text;
            `control` as control tokens, for data that brings its own (format `identity`). What
            is supervised never depends on them.
        pad_token: overrides the pad token of the format or tokenizer.
        engine: `reference` is the `tokenizers` library; `fast` is fastokens, or an error where it
            cannot give the reference's tokens; `auto` is fast where that can be, else reference.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: PromptFormat = PromptFormat.CHAT_TEMPLATE
    loss_on: LossOn = LossOn.ASSISTANT
    loss_turns: LossTurns = LossTurns.ALL
    loss_parts: tuple[LossPart, ...] = Field(default=tuple(LossPart), min_length=1)
    on_lossy: OnLossy = OnLossy.REJECT
    long_documents: LongDocumentPolicy
    max_document_tokens: int | None = Field(default=None, ge=2)
    chat_template: str | None = None
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    template_date: date | None = None
    typed_control_tokens: TypedControlTokens = TypedControlTokens.TEXT
    pad_token: str | None = None
    engine: Engine = Engine.AUTO

    @field_validator("loss_parts")
    @classmethod
    def _in_order(cls, parts: tuple[LossPart, ...]) -> tuple[LossPart, ...]:
        """Equal sets are equal settings, however they were written."""
        return tuple(part for part in LossPart if part in parts)

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        chosen = self.loss_turns is not LossTurns.ALL or len(self.loss_parts) < len(LossPart)
        if self.loss_on is LossOn.ALL and chosen:
            raise ValueError(
                "tokenize.loss_on = all supervises every token; found it beside loss_turns = "
                f"{self.loss_turns.value} and loss_parts = {', '.join(self.loss_parts)}. Use "
                "loss_on = assistant, or leave the other two out."
            )
        return self
