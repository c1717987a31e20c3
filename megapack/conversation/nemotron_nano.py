"""Format `nemotron-nano-v2`: each turn has its header, an answer ends in `<SPECIAL_12>`.

`/think` and `/no_think` are switches: where they stand alone in a system or user turn, cutting them
out is meant. Megatron cuts them out of words and URLs too, which is damage and counts as lossy.
"""

import re
from collections.abc import Sequence

from megapack.conversation.config import LossPart, PromptFormat
from megapack.conversation.messages import Message, Role
from megapack.conversation.nemotron import END, SYSTEM, TURN, NemotronPrompt
from megapack.conversation.render import Segment

_SWITCH = re.compile(r"(?<!\S)/(?:no_)?think(?=\s|$|[.,;:!?](?:\s|$))")

_USER, _ASSISTANT = Segment(f"{TURN}User\n"), Segment(f"{TURN}Assistant\n")
_NEWLINE = Segment("\n")
_END, _TRAINED_END = Segment(f"\n{END}\n"), Segment(f"\n{END}\n", LossPart.END_OF_TURN)


class NemotronNanoPrompt(NemotronPrompt):
    """Renders conversations as Megatron's `nemotron-nano-v2`."""

    form = PromptFormat.NEMOTRON_NANO_V2

    def _turn(self, message: Message, *, head: bool) -> Sequence[Segment]:
        if message.role is Role.TOOL:
            return ()
        if message.role is Role.ASSISTANT:
            text, trained = message.content.strip(), message.loss is not False
            return (
                _ASSISTANT,
                Segment(text, LossPart.CONTENT if trained else None, typed=True),
                _TRAINED_END if trained else _END,
            )
        text = _without_switches(message.content)
        if message.role is Role.USER:
            return _USER, Segment(text, typed=True), _NEWLINE
        return (
            Segment(f"{SYSTEM}System\n", system=head),
            Segment(text, typed=True, system=head),
            Segment("\n", system=head),
        )

    def _specials(self, roles: set[Role]) -> list[str]:
        turns = [TURN] * bool(roles & {Role.USER, Role.ASSISTANT})
        return [SYSTEM] * (Role.SYSTEM in roles) + turns + [END] * (Role.ASSISTANT in roles)

    def _lost(self, messages: Sequence[Message]) -> list[str]:
        return [
            f"'/think' or '/no_think' inside a word of message {index}"
            for index, message in enumerate(messages)
            if message.role in (Role.SYSTEM, Role.USER) and _is_damaged(message.content)
        ]


def _without_switches(text: str) -> str:
    """Text as Megatron leaves it."""
    return text.replace("/think", "").replace("/no_think", "").strip()


def _is_damaged(text: str) -> bool:
    """Whether Megatron cuts more out of a text than switches."""
    # Looking for them takes a hundredth of the time of the pattern.
    if "/think" not in text and "/no_think" not in text:
        return False
    return _without_switches(text) != _SWITCH.sub("", text).strip()
