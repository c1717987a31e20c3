"""Format `identity`: contents end to end, without headers or end tokens.

The data must bring its own. Megatron-core 0.19.2 trains every token under this name; that is
`loss_on = all` here.
"""

from megapack.conversation.config import LossPart, PromptFormat, TokenizeConfig
from megapack.conversation.encoder import Encoder
from megapack.conversation.megatron_rules import MegatronRules, heads, lost_fields
from megapack.conversation.messages import Conversation
from megapack.conversation.render import Render, Segment
from megapack.conversation.switches import trained_turns


class IdentityPrompt:
    """Renders conversations as Megatron's `identity`."""

    def __init__(self, *, encoder: Encoder, config: TokenizeConfig) -> None:
        self._rules = MegatronRules(
            name=PromptFormat.IDENTITY.value, encoder=encoder, config=config
        )

    def render(self, conversation: Conversation, *, piece: int = 0) -> Render:
        """Render a conversation.

        Args:
            conversation: checked messages.
            piece: number of the piece.

        Raises:
            RejectedError: LOSSY_FORMAT.
        """
        head = heads(conversation.messages)
        trained = trained_turns(conversation)
        segments = [
            Segment(
                text=message.content,
                typed=True,
                part=LossPart.CONTENT if index in trained else None,
                system=index < head,
            )
            for index, message in enumerate(conversation.messages)
        ]
        return self._rules.finish(
            segments, losses=lost_fields(conversation), specials=(), piece=piece
        )
