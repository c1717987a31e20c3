"""Documents longer than the job allows, cut at user turns.

An exchange is the user's turn (with system messages beside it) and all that answers it, so a tool
call and its result stay together. Each piece is the system message and as many exchanges as fit,
rendered as a conversation of its own. An exchange that does not fit alone is dropped and counted,
and no piece runs across the gap it leaves. A piece without targets is dropped too, except where the
job wants none. Where only the last turn trains there is one piece: the exchange that holds it, and
as many before it as fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from megapack.conversation.config import LossTurns
from megapack.conversation.encoder import Encoder
from megapack.conversation.megatron_rules import heads
from megapack.conversation.messages import Conversation, Message, Role
from megapack.conversation.prompt import Prompt
from megapack.conversation.switches import trained_turns
from megapack.conversation.tokenized import Tokenized, tokenize_renders

_PROMPTING = (Role.SYSTEM, Role.USER)
_HEADER_CHARACTERS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class LostExchanges:
    """Exchanges side by side that are in no piece.

    Attributes:
        first: number of the first of them, from 0.
        end: one past the last.
        messages: indexes of their first and last message.
        tokens: of a piece that would hold them, the head included.
        new_tokens: those of them that no piece before holds.
    """

    first: int
    end: int
    messages: tuple[int, int]
    tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """What became of a conversation that was too long.

    Attributes:
        pieces: the documents, in order; each at most the limit, each with supervised tokens
            unless the job wants none.
        lost: too long alone, or without targets.
        left_out_exchanges: exchanges that would only stand in front of the last turn.
        left_out_tokens: about their tokens.
    """

    pieces: tuple[Tokenized, ...]
    lost: tuple[LostExchanges, ...] = ()
    left_out_exchanges: int = 0
    left_out_tokens: int = 0


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
        self,
        conversation: Conversation,
        *,
        prompt: Prompt,
        encoder: Encoder,
        limit: int,
        turns: LossTurns,
    ) -> None:
        self._conversation = conversation
        self._prompt = prompt
        self._encoder = encoder
        self._limit = limit
        self._turns = turns
        self._head, self._exchanges = exchanges(conversation.messages)
        weights = [sum(map(_weight, part)) for part in self._exchanges]
        self._head_weight = sum(map(_weight, self._head))
        self._sums = list(accumulate(weights, initial=0))
        self._ends = list(accumulate(map(len, self._exchanges), initial=len(self._head)))

    @property
    def num_exchanges(self) -> int:
        """Exchanges of the conversation."""
        return len(self._exchanges)

    def cut(self, *, whole_tokens: int) -> Pieces:
        """Cut.

        Args:
            whole_tokens: tokens of the uncut conversation; with them the characters of each
                exchange tell about how many fit, so that few pieces are encoded in vain.

        Raises:
            RejectedError: an exchange cannot be rendered without what stands before it.
        """
        rate = whole_tokens / max(1, self._head_weight + self._sums[-1])
        if self._turns is LossTurns.LAST:
            return self._before_last(whole_tokens=whole_tokens, rate=rate)
        pieces: list[Tokenized] = []
        lost: list[LostExchanges] = []
        start = 0
        total = len(self._exchanges)
        while start < total:
            first = start
            piece, (_, start) = self._fit(
                _growing_from(start),
                most=total - start - 1,
                number=len(pieces),
                rate=rate,
            )
            useful = piece.num_targets or self._turns is LossTurns.NONE
            if piece.num_tokens <= self._limit and useful:
                pieces.append(piece)
            else:
                lost.append(self._lost(first, start, piece))
        return Pieces(pieces=tuple(pieces), lost=tuple(lost))

    def _lost(self, first: int, end: int, piece: Tokenized) -> LostExchanges:
        return LostExchanges(
            first=first,
            end=end,
            messages=(self._ends[first], self._ends[end] - 1),
            tokens=piece.num_tokens,
            new_tokens=piece.num_tokens - piece.num_repeated,
        )

    def _before_last(self, *, whole_tokens: int, rate: float) -> Pieces:
        """The exchange of the last trained turn with as many before it as fit."""
        last = trained_turns(self._conversation)[-1]
        end = next(number for number, position in enumerate(self._ends) if position > last)
        piece, (start, _) = self._fit(
            lambda more: (end - 1 - more, end), most=end - 1, number=0, rate=rate
        )
        total = len(self._exchanges)
        if piece.num_tokens > self._limit:
            return Pieces(pieces=(), lost=(self._lost(start, end, piece),))
        return Pieces(
            pieces=(piece,),
            left_out_exchanges=total - (end - start),
            left_out_tokens=max(0, whole_tokens - piece.num_tokens),
        )

    def _fit(
        self, bounds: Callable[[int], tuple[int, int]], *, most: int, number: int, rate: float
    ) -> tuple[Tokenized, tuple[int, int]]:
        """The longest piece that fits, or one exchange alone that does not.

        Args:
            bounds: first and end of the exchanges of a piece, by how many join the first one.
            most: largest such number.
            number: of the piece.
            rate: tokens a unit of weight.
        """
        budget = self._limit / rate - self._head_weight
        more = 0
        while more < most and self._weight_of(bounds(more + 1)) <= budget:
            more += 1
        piece = self._piece(*bounds(more), number=number)
        while piece.num_tokens > self._limit and more:
            more -= 1
            piece = self._piece(*bounds(more), number=number)
        while more < most and piece.num_tokens <= self._limit:
            extra = self._weight_of(bounds(more + 1)) - self._weight_of(bounds(more))
            if piece.num_tokens + extra * rate > self._limit:
                break
            longer = self._piece(*bounds(more + 1), number=number)
            if longer.num_tokens > self._limit:
                break
            piece, more = longer, more + 1
        return piece, bounds(more)

    def _weight_of(self, bounds: tuple[int, int]) -> int:
        return self._sums[bounds[1]] - self._sums[bounds[0]]

    def _piece(self, start: int, end: int, *, number: int) -> Tokenized:
        turns = [message for part in self._exchanges[start:end] for message in part]
        render = self._prompt.render(
            self._conversation.with_messages((*self._head, *turns)),
            piece=number,
        )
        return tokenize_renders([render], encoder=self._encoder)[0]


def _growing_from(start: int) -> Callable[[int], tuple[int, int]]:
    return lambda more: (start, start + 1 + more)


def _weight(message: Message) -> int:
    """About how long a message is: its characters."""
    calls = len(str(message.tool_calls)) if message.tool_calls else 0
    return len(message.content) + len(message.reasoning) + calls + _HEADER_CHARACTERS
