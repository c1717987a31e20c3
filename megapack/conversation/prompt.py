"""The registry of prompt formats, and which id pads.

Pads are masked by position, so the pad id may equal the end token or any other id; it only has to
exist.
"""

from collections.abc import Callable
from typing import Protocol

from megapack.conversation.chat_template import ChatTemplatePrompt
from megapack.conversation.config import PromptFormat, TokenizeConfig
from megapack.conversation.encoder import Encoder
from megapack.conversation.identity import IdentityPrompt
from megapack.conversation.messages import Conversation
from megapack.conversation.nemotron_h import NemotronHPrompt
from megapack.conversation.nemotron_nano import NemotronNanoPrompt
from megapack.conversation.render import Render
from megapack.errors import ConfigError


class Prompt(Protocol):
    """A format: conversation -> text and supervised characters."""

    def render(self, conversation: Conversation, *, piece: int = 0) -> Render:
        """Render a conversation or a piece of one.

        Raises:
            RejectedError: the format cannot express it.
        """


_PROMPTS: dict[PromptFormat, Callable[..., Prompt]] = {
    PromptFormat.NEMOTRON_H_ALIGNED: NemotronHPrompt,
    PromptFormat.NEMOTRON_NANO_V2: NemotronNanoPrompt,
    PromptFormat.IDENTITY: IdentityPrompt,
    PromptFormat.CHAT_TEMPLATE: ChatTemplatePrompt,
}
_PAD_TOKENS = {
    PromptFormat.NEMOTRON_H_ALIGNED: "<SPECIAL_233>",
    PromptFormat.NEMOTRON_NANO_V2: "<unk>",
    PromptFormat.IDENTITY: "<unk>",
}


def prompt_format(name: str) -> PromptFormat:
    """Format of a name.

    Raises:
        ConfigError: unknown, with the known names.
    """
    try:
        return PromptFormat(name)
    except ValueError as error:
        known = ", ".join(known.value for known in PromptFormat)
        raise ConfigError(
            f"expected one of the prompt formats {known}; found {name!r}. Megatron's 'default' is "
            "chat_template with loss_on = all."
        ) from error


def make_prompt(form: PromptFormat, *, encoder: Encoder, config: TokenizeConfig) -> Prompt:
    """The renderer of a format.

    Raises:
        ConfigError: chat_template without a usable template.
    """
    return _PROMPTS[form](encoder=encoder, config=config)


def resolve_pad_id(form: PromptFormat, *, encoder: Encoder, config: TokenizeConfig) -> int:
    """Id that fills what no document covers.

    The job's own pad token must exist. Otherwise the first that exists of: the format's, the
    tokenizer's pad, end and unknown tokens, id 0.

    Raises:
        ConfigError: the job names a pad token that the tokenizer lacks.
    """
    if config.pad_token is not None:
        found = encoder.token_id(config.pad_token)
        if found is None:
            raise ConfigError(
                f"tokenize.pad_token: expected a token of the tokenizer, found "
                f"{config.pad_token!r}, which it lacks. Name one that exists, or leave it out."
            )
        return found
    names = (_PAD_TOKENS.get(form), *map(encoder.special_tokens.get, _FALLBACKS))
    ids = (encoder.token_id(name) for name in names if name is not None)
    return next((found for found in ids if found is not None), 0)


_FALLBACKS = ("pad_token", "eos_token", "unk_token")
