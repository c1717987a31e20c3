"""What the two Nemotron formats share: what they lose, and turns laid end to end.

Both print only stripped contents under headers of their own; a subclass says what a turn looks
like, which control tokens it needs and what else would be lost.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

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

SYSTEM, TURN, END = "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"


class NemotronPrompt(ABC):
    """Renders conversations as one of Megatron's Nemotron formats."""

    form: ClassVar[PromptFormat]

    def __init__(self, *, encoder: Encoder, config: TokenizeConfig) -> None:
        self._rules = MegatronRules(name=self.form.value, encoder=encoder, config=config)

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
            *self._lost(messages),
        ]
        head = heads(messages)
        turns = (self._turn(m, head=index < head) for index, m in enumerate(messages))
        roles = {message.role for message in messages}
        return self._rules.finish(
            [segment for turn in turns for segment in turn],
            losses=losses,
            specials=self._specials(roles),
            piece=piece,
        )

    @abstractmethod
    def _turn(self, message: Message, *, head: bool) -> Sequence[Segment]:
        """One turn; `head` when it is a system message at the head."""

    @abstractmethod
    def _specials(self, roles: set[Role]) -> list[str]:
        """Control tokens that turns of these roles need."""

    @abstractmethod
    def _lost(self, messages: Sequence[Message]) -> list[str]:
        """What this format alone would lose."""
