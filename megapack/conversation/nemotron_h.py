"""Format `nemotron-h-aligned`: the assistant header stands at the end of the user's turn.

So an answer has no end token, only the newline after it, and a user turn that no answer follows
leaves a header without an answer.
"""

from collections.abc import Sequence
from itertools import pairwise

from megapack.conversation.config import LossPart, PromptFormat
from megapack.conversation.messages import Message, Role
from megapack.conversation.nemotron import SYSTEM, TURN, NemotronPrompt
from megapack.conversation.render import Segment

_USER, _ASSISTANT = Segment(f"{TURN}User\n"), Segment(f"\n{TURN}Assistant\n")
_END, _TRAINED_END = Segment("\n"), Segment("\n", LossPart.END_OF_TURN)


class NemotronHPrompt(NemotronPrompt):
    """Renders conversations as Megatron's `nemotron-h-aligned`."""

    form = PromptFormat.NEMOTRON_H_ALIGNED

    def _turn(self, message: Message, *, head: bool) -> Sequence[Segment]:
        text = message.content.strip()
        if message.role is Role.SYSTEM:
            return (
                Segment(f"{SYSTEM}System\n", system=head),
                Segment(text, typed=True, system=head),
                Segment("\n", system=head),
            )
        if message.role is Role.USER:
            return _USER, Segment(text, typed=True), _ASSISTANT
        if message.role is Role.TOOL:
            return ()
        trained = message.loss is not False
        return (
            Segment(text, LossPart.CONTENT if trained else None, typed=True),
            _TRAINED_END if trained else _END,
        )

    def _specials(self, roles: set[Role]) -> list[str]:
        return [SYSTEM] * (Role.SYSTEM in roles) + [TURN] * (Role.USER in roles)

    def _lost(self, messages: Sequence[Message]) -> list[str]:
        return [
            f"the turn boundary after user message {index} (an assistant header without an answer)"
            for index, (message, following) in enumerate(pairwise(messages))
            if message.role is Role.USER and following.role in (Role.USER, Role.SYSTEM)
        ]
