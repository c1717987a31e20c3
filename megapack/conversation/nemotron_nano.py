"""Format `nemotron-nano-v2`: each turn has its header, an answer ends in `<SPECIAL_12>`.

`/think` and `/no_think` are switches: where they stand alone in a system or user turn, cutting them
out is meant. Megatron cuts them out of words and URLs too, which is damage and counts as lossy.
"""

import re

from megapack.conversation.config import PromptFormat, TokenizeConfig
from megapack.conversation.encoder import Encoder
from megapack.conversation.megatron_rules import (
    MegatronRules,
    check_assistant_follows,
    heads,
    lost_fields,
    lost_indentation,
    lost_tool_turns,
)
from megapack.conversation.messages import Conversation, Message, Role
from megapack.conversation.render import Render, Segment

_SYSTEM, _TURN, _END = "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"
_SWITCH = re.compile(r"(?<!\S)/(?:no_)?think(?=\s|$|[.,;:!?](?:\s|$))")


class NemotronNanoPrompt:
    """Renders conversations as Megatron's `nemotron-nano-v2`."""

    def __init__(self, *, encoder: Encoder, config: TokenizeConfig) -> None:
        self._rules = MegatronRules(
            name=PromptFormat.NEMOTRON_NANO_V2.value, encoder=encoder, config=config
        )

    def render(self, conversation: Conversation, *, piece: int = 0) -> Render:
        """Render a conversation.

        Args:
            conversation: checked messages.
            piece: number of the piece.

        Raises:
            RejectedError: BAD_ROLE_ORDER, LOSSY_FORMAT or MISSING_SPECIAL_TOKEN.
        """
        messages = conversation.messages
        check_assistant_follows(messages)
        losses = [
            *lost_fields(conversation),
            *lost_tool_turns(messages),
            *lost_indentation(messages),
            *_damaged_words(messages),
        ]
        segments: list[Segment] = []
        head = heads(messages)
        for index, message in enumerate(messages):
            segments += _turn(message, head=index < head)
        roles = {message.role for message in messages}
        specials = [_SYSTEM] * (Role.SYSTEM in roles) + [_TURN] * bool(
            roles & {Role.USER, Role.ASSISTANT}
        )
        specials += [_END] * (Role.ASSISTANT in roles)
        return self._rules.finish(segments, losses=losses, specials=specials, piece=piece)


def _without_switches(text: str) -> str:
    """Text as Megatron leaves it."""
    return text.replace("/think", "").replace("/no_think", "").strip()


def _turn(message: Message, *, head: bool) -> list[Segment]:
    if message.role is Role.ASSISTANT:
        learnt = message.loss is not False
        return [
            Segment(text=f"{_TURN}Assistant\n"),
            Segment(text=message.content.strip(), typed=True, supervised=learnt),
            Segment(text=f"\n{_END}\n", supervised=learnt),
        ]
    if message.role is Role.TOOL:
        return []
    header = f"{_SYSTEM}System\n" if message.role is Role.SYSTEM else f"{_TURN}User\n"
    return [
        Segment(text=header, system=head),
        Segment(text=_without_switches(message.content), typed=True, system=head),
        Segment(text="\n", system=head),
    ]


def _damaged_words(messages: tuple[Message, ...]) -> list[str]:
    return [
        f"'/think' or '/no_think' inside a word of message {index}"
        for index, message in enumerate(messages)
        if message.role in (Role.SYSTEM, Role.USER)
        and _without_switches(message.content) != _SWITCH.sub("", message.content).strip()
    ]
