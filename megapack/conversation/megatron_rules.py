"""What the Megatron SFT formats share: the checks that say when they would lose something.

Their templates print content and little else, so tools, calls, kept-apart reasoning and (except
under `identity`) tool results would vanish. `on_lossy = keep` goes on as Megatron does, and counts.
"""

from collections.abc import Iterable, Sequence

from megapack.conversation.config import LossOn, OnLossy, TokenizeConfig
from megapack.conversation.encoder import Encoder, typed_control
from megapack.conversation.messages import Conversation, Message, Role
from megapack.conversation.rejection import RejectedError
from megapack.conversation.render import Render, Segment, join_segments
from megapack.records.drops import DropReason


def lost_fields(conversation: Conversation) -> list[str]:
    """What no Megatron format prints."""
    losses = [f"{len(conversation.tools)} tool descriptions"] if conversation.tools else []
    for index, message in enumerate(conversation.messages):
        if message.tool_calls:
            losses.append(f"the tool calls of message {index}")
        if message.reasoning:
            losses.append(f"the reasoning of message {index}")
    return losses


def lost_tool_turns(messages: Sequence[Message]) -> list[str]:
    """Tool results, which the Nemotron templates print nothing for."""
    return [
        f"the tool result of message {index}"
        for index, message in enumerate(messages)
        if message.role is Role.TOOL
    ]


def lost_indentation(messages: Sequence[Message]) -> list[str]:
    """Text of several lines whose first line loses its indentation to `strip`.

    White space around the text, and in front of a single line, is no content.
    """
    losses = []
    for index, message in enumerate(messages):
        if not message.content[:1].isspace():
            continue
        bare = message.content.strip()
        lead = message.content[: len(message.content) - len(message.content.lstrip())]
        if "\n" in bare and lead.rpartition("\n")[2]:
            losses.append(f"the indentation of the first line of message {index}")
    return losses


def check_assistant_follows(messages: Sequence[Message]) -> None:
    """Megatron wants each assistant turn right after a user or tool turn.

    Raises:
        RejectedError: BAD_ROLE_ORDER.
    """
    for index, message in enumerate(messages):
        previous = messages[index - 1].role if index else None
        if message.role is Role.ASSISTANT and previous not in (Role.USER, Role.TOOL):
            raise RejectedError(
                DropReason.BAD_ROLE_ORDER,
                f"expected assistant message {index} after a user or tool message, found it after "
                f"{previous.value if previous else 'nothing'}.",
            )


class MegatronRules:
    """Decides what happens to a conversation that a Megatron format cannot express."""

    def __init__(self, *, name: str, encoder: Encoder, config: TokenizeConfig) -> None:
        self._name = name
        self._encoder = encoder
        self._config = config

    def missing(self, specials: Iterable[str]) -> list[str]:
        """Those of the format's control tokens that the tokenizer lacks."""
        return [text for text in specials if self._encoder.token_id(text) is None]

    def finish(
        self,
        segments: Iterable[Segment],
        *,
        losses: Sequence[str],
        specials: Sequence[str],
        piece: int,
    ) -> Render:
        """Refuse or render.

        Args:
            segments: the text by origin.
            losses: what the format loses.
            specials: control tokens that the text needs.
            piece: number of the piece; later ones repeat the head.

        Raises:
            RejectedError: LOSSY_FORMAT or MISSING_SPECIAL_TOKEN, unless the job keeps lossy ones.
        """
        missing = self.missing(specials)
        if self._config.on_lossy is OnLossy.REJECT:
            if missing:
                raise RejectedError(
                    DropReason.MISSING_SPECIAL_TOKEN,
                    f"format {self._name}: expected control tokens {', '.join(specials)}; the "
                    f"tokenizer lacks {', '.join(missing)}. Use the tokenizer of the format.",
                )
            if losses:
                raise RejectedError(
                    DropReason.LOSSY_FORMAT,
                    f"format {self._name} would lose {'; '.join(losses)}. Use format "
                    "chat_template, or set on_lossy = keep.",
                )
        render = join_segments(
            segments,
            control=typed_control(self._encoder, config=self._config),
            parts=self._config.loss_parts,
        )
        kept = (*losses, *(f"the control token {text}" for text in missing))
        return Render(
            text=render.text,
            spans=None if self._config.loss_on is LossOn.ALL else render.spans,
            protected=render.protected,
            losses=kept,
            repeated=render.repeated if piece else 0,
        )


def heads(messages: Sequence[Message]) -> int:
    """Number of system messages at the head."""
    for index, message in enumerate(messages):
        if message.role is not Role.SYSTEM:
            return index
    return len(messages)
