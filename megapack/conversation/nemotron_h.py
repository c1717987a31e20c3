"""Format `nemotron-h-aligned`: the assistant header stands at the end of the user's turn.

So an answer has no end token, only the newline after it, and a user turn that no answer follows
leaves a header without an answer.
"""

from itertools import pairwise

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

_SYSTEM, _TURN = "<SPECIAL_10>", "<SPECIAL_11>"


class NemotronHPrompt:
    """Renders conversations as Megatron's `nemotron-h-aligned`."""

    def __init__(self, *, encoder: Encoder, config: TokenizeConfig) -> None:
        self._rules = MegatronRules(
            name=PromptFormat.NEMOTRON_H_ALIGNED.value, encoder=encoder, config=config
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
            *_dangling_headers(messages),
        ]
        segments: list[Segment] = []
        head = heads(messages)
        for index, message in enumerate(messages):
            segments += _turn(message, head=index < head)
        roles = {message.role for message in messages}
        specials = [_SYSTEM] * (Role.SYSTEM in roles) + [_TURN] * (Role.USER in roles)
        return self._rules.finish(segments, losses=losses, specials=specials, piece=piece)


def _turn(message: Message, *, head: bool) -> list[Segment]:
    text = message.content.strip()
    if message.role is Role.SYSTEM:
        return [
            Segment(text=f"{_SYSTEM}System\n", system=head),
            Segment(text=text, typed=True, system=head),
            Segment(text="\n", system=head),
        ]
    if message.role is Role.USER:
        return [
            Segment(text=f"{_TURN}User\n"),
            Segment(text=text, typed=True),
            Segment(text=f"\n{_TURN}Assistant\n"),
        ]
    if message.role is Role.ASSISTANT:
        learnt = message.loss is not False
        return [
            Segment(text=text, typed=True, supervised=learnt),
            Segment(text="\n", supervised=learnt),
        ]
    return []


def _dangling_headers(messages: tuple[Message, ...]) -> list[str]:
    return [
        f"the turn boundary after user message {index} (an assistant header without an answer)"
        for index, (message, following) in enumerate(pairwise(messages))
        if message.role is Role.USER and following.role in (Role.USER, Role.SYSTEM)
    ]
