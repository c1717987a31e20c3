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


class NemotronNanoPrompt(NemotronPrompt):
    """Renders conversations as Megatron's `nemotron-nano-v2`."""

    form = PromptFormat.NEMOTRON_NANO_V2

    def _turn(self, message: Message, *, head: bool) -> Sequence[Segment]:
        if message.role is Role.TOOL:
            return ()
        if message.role is Role.ASSISTANT:
            text, trained = message.content.strip(), message.loss is not False
            return (
                Segment(text=f"{TURN}Assistant\n"),
                Segment(text=text, typed=True, part=LossPart.CONTENT if trained else None),
                Segment(text=f"\n{END}\n", part=LossPart.END_OF_TURN if trained else None),
            )
        header = f"{SYSTEM}System\n" if message.role is Role.SYSTEM else f"{TURN}User\n"
        return (
            Segment(text=header, system=head),
            Segment(text=_without_switches(message.content), typed=True, system=head),
            Segment(text="\n", system=head),
        )

    def _specials(self, roles: set[Role]) -> list[str]:
        turns = [TURN] * bool(roles & {Role.USER, Role.ASSISTANT})
        return [SYSTEM] * (Role.SYSTEM in roles) + turns + [END] * (Role.ASSISTANT in roles)

    def _lost(self, messages: Sequence[Message]) -> list[str]:
        return [
            f"'/think' or '/no_think' inside a word of message {index}"
            for index, message in enumerate(messages)
            if message.role in (Role.SYSTEM, Role.USER)
            and _without_switches(message.content) != _SWITCH.sub("", message.content).strip()
        ]


def _without_switches(text: str) -> str:
    """Text as Megatron leaves it."""
    return text.replace("/think", "").replace("/no_think", "").strip()
