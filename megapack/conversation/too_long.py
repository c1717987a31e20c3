"""Documents longer than the job allows, cut at user turns.

An exchange is the user's turn (with system messages beside it) and all that answers it, so a tool
call and its result stay together. Each piece is the system message and as many exchanges as fit,
rendered as a conversation of its own. An exchange that does not fit alone is lost and counted, and
no piece runs across the gap it leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from megapack.conversation.encoder import Encoder
from megapack.conversation.megatron_rules import heads
from megapack.conversation.messages import Conversation, Message, Role
from megapack.conversation.prompt import Prompt
from megapack.conversation.render import Render
from megapack.conversation.tokenized import Tokenized, tokenize_renders

_PROMPTING = (Role.SYSTEM, Role.USER)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """What became of a conversation that was too long.

    Attributes:
        pieces: the documents, in order; each at most the limit, each with supervised tokens.
        lost_exchanges: exchanges in no piece: too long alone, or in a piece without targets.
        lost_tokens: tokens these exchanges have alone, the repeated head included.
    """

    pieces: tuple[Tokenized, ...]
    lost_exchanges: int
    lost_tokens: int


def exchanges(messages: Sequence[Message]) -> tuple[tuple[Message, ...], list[tuple[Message, ...]]]:
    """Head (system messages) and exchanges; all joined are the messages."""
    head = heads(messages)
    starts = []
    index = head
    while index < len(messages):
        end = index
        while end < len(messages) and messages[end].role in _PROMPTING:
            end += 1
        if any(message.role is Role.USER for message in messages[index:end]):
            starts.append(index)
        index = end + 1
    starts = starts or [head]
    bounds = [*starts, len(messages)]
    bounds[0] = head
    parts = [tuple(messages[a:b]) for a, b in pairwise(bounds)]
    return tuple(messages[:head]), [part for part in parts if part]


class TurnCutter:
    """Cuts one conversation into pieces of at most `limit` tokens."""

    def __init__(
        self, conversation: Conversation, *, prompt: Prompt, encoder: Encoder, limit: int
    ) -> None:
        self._conversation = conversation
        self._prompt = prompt
        self._encoder = encoder
        self._limit = limit
        self._head, self._exchanges = exchanges(conversation.messages)

    def cut(self, *, whole_tokens: int) -> Pieces:
        """Cut.

        Args:
            whole_tokens: tokens of the uncut conversation, to tell how long the head is.

        Raises:
            RejectedError: an exchange cannot be rendered without what stands before it.
        """
        count = len(self._exchanges)
        renders = [self._render(k, k + 1, piece=k) for k in range(count)]
        alone = [t.num_tokens for t in tokenize_renders(renders, encoder=self._encoder)]
        shared = max(0, (sum(alone) - whole_tokens) // (count - 1)) if count > 1 else 0
        pieces: list[Tokenized] = []
        lost: list[int] = []
        start = 0
        while start < count:
            if alone[start] > self._limit:
                lost.append(alone[start])
                start += 1
                continue
            end = self._guess(start, alone=alone, shared=shared)
            piece, end = self._fit(start, end, number=len(pieces))
            if piece.num_targets:
                pieces.append(piece)
            else:
                lost += alone[start:end]
            start = end
        return Pieces(pieces=tuple(pieces), lost_exchanges=len(lost), lost_tokens=sum(lost))

    def _guess(self, start: int, *, alone: Sequence[int], shared: int) -> int:
        """End of the longest run of exchanges that should fit."""
        total, end = alone[start], start + 1
        while end < len(alone) and alone[end] <= self._limit:
            total += alone[end] - shared
            if total > self._limit:
                break
            end += 1
        return end

    def _fit(self, start: int, end: int, *, number: int) -> tuple[Tokenized, int]:
        """The piece itself: shortened until it fits; one exchange alone is known to."""
        while True:
            render = self._render(start, end, piece=number)
            piece = tokenize_renders([render], encoder=self._encoder)[0]
            if piece.num_tokens <= self._limit or end == start + 1:
                return piece, end
            end -= 1

    def _render(self, start: int, end: int, *, piece: int) -> Render:
        turns = [message for part in self._exchanges[start:end] for message in part]
        return self._prompt.render(
            self._conversation.with_messages((*self._head, *turns)), piece=piece
        )
