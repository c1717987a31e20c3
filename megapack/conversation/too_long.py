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
from megapack.conversation.tokenized import Tokenized, tokenize_renders

_PROMPTING = (Role.SYSTEM, Role.USER)
_HEADER_CHARACTERS = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """What became of a conversation that was too long.

    Attributes:
        pieces: the documents, in order; each at most the limit, each with supervised tokens.
        lost_exchanges: exchanges in no piece: too long alone, or in a piece without targets.
        lost_tokens: their tokens; a head that an earlier piece holds is not counted again.
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
        self._weights = [sum(map(_weight, part)) for part in self._exchanges]

    def cut(self, *, whole_tokens: int) -> Pieces:
        """Cut.

        Args:
            whole_tokens: tokens of the uncut conversation; with them the characters of each
                exchange tell about how many fit, so that few pieces are encoded in vain.

        Raises:
            RejectedError: an exchange cannot be rendered without what stands before it.
        """
        head = sum(map(_weight, self._head))
        rate = whole_tokens / max(1, head + sum(self._weights))
        pieces: list[Tokenized] = []
        lost_exchanges = lost_tokens = start = 0
        while start < len(self._exchanges):
            end = self._guess(start, budget=self._limit / rate - head)
            piece, end = self._fit(start, end, number=len(pieces), rate=rate)
            if piece.num_tokens <= self._limit and piece.num_targets:
                pieces.append(piece)
            else:
                lost_exchanges += end - start
                lost_tokens += piece.num_tokens - piece.num_repeated
            start = end
        return Pieces(pieces=tuple(pieces), lost_exchanges=lost_exchanges, lost_tokens=lost_tokens)

    def _guess(self, start: int, *, budget: float) -> int:
        """End of the longest run of exchanges that should fit; at least one."""
        end = start + 1
        total = self._weights[start]
        while end < len(self._weights) and total + self._weights[end] <= budget:
            total += self._weights[end]
            end += 1
        return end

    def _fit(self, start: int, end: int, *, number: int, rate: float) -> tuple[Tokenized, int]:
        """The longest piece from `start` that fits, or one exchange alone that does not."""
        piece = self._piece(start, end, number=number)
        while piece.num_tokens > self._limit and end > start + 1:
            end -= 1
            piece = self._piece(start, end, number=number)
        while end < len(self._exchanges) and piece.num_tokens <= self._limit:
            if piece.num_tokens + self._weights[end] * rate > self._limit:
                break
            longer = self._piece(start, end + 1, number=number)
            if longer.num_tokens > self._limit:
                break
            piece, end = longer, end + 1
        return piece, end

    def _piece(self, start: int, end: int, *, number: int) -> Tokenized:
        turns = [message for part in self._exchanges[start:end] for message in part]
        render = self._prompt.render(
            self._conversation.with_messages((*self._head, *turns)),
            piece=number,
        )
        return tokenize_renders([render], encoder=self._encoder)[0]


def _weight(message: Message) -> int:
    """About how long a message is: its characters."""
    calls = len(str(message.tool_calls)) if message.tool_calls else 0
    return len(message.content) + len(message.reasoning) + calls + _HEADER_CHARACTERS
