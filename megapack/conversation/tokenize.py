"""Conversations -> documents: rendered, encoded in batches, masked, cut to the job's limit.

Every conversation that comes in leaves as one or more documents or as one drop with a reason.
"""

from collections.abc import Sequence

from megapack.conversation.config import (
    LongDocumentPolicy,
    LossTurns,
    PromptFormat,
    TokenizeConfig,
)
from megapack.conversation.encoder import Encoder
from megapack.conversation.messages import Conversation, document_id
from megapack.conversation.outcome import Outcome, TokenizeCounts
from megapack.conversation.prompt import Prompt, make_prompt
from megapack.conversation.rejection import RejectedError
from megapack.conversation.render import Render
from megapack.conversation.switches import switched
from megapack.conversation.tokenized import Tokenized, tokenize_renders
from megapack.conversation.too_long import LostExchanges, TurnCutter
from megapack.errors import DataError
from megapack.records.document import Document
from megapack.records.drops import Drop, DropReason
from megapack.records.stored_conversation import StoredConversation


class ConversationTokenizer:
    """Tokenizes conversations under one job's settings; each with its own source's format."""

    def __init__(self, *, encoder: Encoder, config: TokenizeConfig, limit: int) -> None:
        """Prepare.

        Args:
            encoder: tokenizer engine.
            config: settings.
            limit: longest document in tokens.
        """
        self._encoder = encoder
        self._config = config
        self._limit = limit
        self._prompts: dict[PromptFormat, Prompt] = {}

    def tokenize(self, stored: Sequence[StoredConversation]) -> Outcome:
        """Tokenize a batch.

        Raises:
            ConfigError: a format cannot be used with this tokenizer at all.
            DataError: a document is too long and the job says `error`.
        """
        outcomes: dict[int, Outcome] = {}
        renders: dict[int, Render] = {}
        conversations: dict[int, Conversation] = {}
        for index, item in enumerate(stored):
            prompt = self._prompt(PromptFormat(item.format))
            try:
                conversation = Conversation.loads(item.conversation)
                conversations[index] = switched(conversation, config=self._config)
                renders[index] = prompt.render(conversations[index])
            except (RejectedError, RecursionError) as error:
                outcomes[index] = _dropped(item, error)
        tokenized = tokenize_renders(list(renders.values()), encoder=self._encoder)
        for (index, render), tokens in zip(renders.items(), tokenized, strict=True):
            try:
                outcomes[index] = self._outcome(
                    stored[index], conversations[index], render=render, tokens=tokens
                )
            except (RejectedError, RecursionError) as error:
                outcomes[index] = _dropped(stored[index], error, tokens=tokens.num_tokens)
        ordered = [outcomes[index] for index in range(len(stored))]
        return Outcome(
            documents=tuple(d for outcome in ordered for d in outcome.documents),
            formats=tuple(form for outcome in ordered for form in outcome.formats),
            drops=tuple(d for outcome in ordered for d in outcome.drops),
            counts=TokenizeCounts.total(outcome.counts for outcome in ordered),
        )

    def count_tokens(self, conversation: Conversation, *, form: PromptFormat) -> int:
        """Tokens of a conversation before any cut, by the same code as `tokenize`.

        Raises:
            RejectedError: the format cannot express it.
        """
        render = self._prompt(form).render(conversation)
        return tokenize_renders([render], encoder=self._encoder)[0].num_tokens

    def _prompt(self, form: PromptFormat) -> Prompt:
        if form not in self._prompts:
            self._prompts[form] = make_prompt(form, encoder=self._encoder, config=self._config)
        return self._prompts[form]

    def _outcome(
        self,
        item: StoredConversation,
        conversation: Conversation,
        *,
        render: Render,
        tokens: Tokenized,
    ) -> Outcome:
        if not tokens.num_tokens:
            raise RejectedError(
                DropReason.EMPTY,
                f"expected at least one token, found none: format {item.format} prints nothing of "
                "this conversation.",
            )
        if not tokens.num_targets and self._config.loss_turns is not LossTurns.NONE:
            raise RejectedError(
                DropReason.NOTHING_SUPERVISED,
                f"expected at least one supervised token under loss_on = "
                f"{self._config.loss_on.value}, loss_turns = {self._config.loss_turns.value} and "
                f"loss_parts = {', '.join(self._config.loss_parts)}, found none in "
                f"{tokens.num_tokens}.",
            )
        pieces: tuple[Tokenized, ...] = (tokens,)
        drops: tuple[Drop, ...] = ()
        extra: TokenizeCounts | None = None
        if tokens.num_tokens > self._limit:
            pieces, drops, extra = self._shorten(item, conversation, tokens=tokens)
        documents = tuple(
            _document(item, piece=number, tokens=piece) for number, piece in enumerate(pieces)
        )
        targets = sum(piece.num_targets for piece in pieces)
        counts = TokenizeCounts(
            conversations=1,
            kept=1,
            documents=len(documents),
            tokens=sum(piece.num_tokens for piece in pieces),
            target_tokens=targets,
            lost_target_tokens=max(0, tokens.num_targets - targets),
            lossy_documents=len(documents) if render.losses else 0,
            typed_control_documents=len(documents) if render.protected else 0,
        )
        formats = (item.format,) * len(documents)
        return Outcome(
            documents=documents,
            formats=formats,
            drops=drops,
            counts=counts if extra is None else counts.plus(extra),
        )

    def _shorten(
        self, item: StoredConversation, conversation: Conversation, *, tokens: Tokenized
    ) -> tuple[tuple[Tokenized, ...], tuple[Drop, ...], TokenizeCounts]:
        """Pieces, a drop for what is in none of them, and what was done."""
        policy = self._config.long_documents
        length, limit = tokens.num_tokens, self._limit
        if policy is LongDocumentPolicy.ERROR:
            raise DataError(
                f"{item.uri}:{item.line + 1} (document {item.document_id}): expected at most "
                f"{limit} tokens, found {length}. Raise the row length, or set "
                "tokenize.long_documents to split, truncate or drop."
            )
        if policy is LongDocumentPolicy.DROP:
            raise _too_long(f"expected at most {limit} tokens, found {length}.")
        if policy is LongDocumentPolicy.TRUNCATE:
            head = tokens.head(limit)
            if not head.num_targets and tokens.num_targets:
                raise _too_long(
                    f"expected supervised tokens among the first {limit}, found none: the first "
                    f"stands at {int(tokens.target_runs[0])}."
                )
            return (head,), (), TokenizeCounts(truncated_documents=1, lost_tokens=length - limit)
        cutter = TurnCutter(
            conversation,
            prompt=self._prompt(PromptFormat(item.format)),
            encoder=self._encoder,
            limit=limit,
            turns=self._config.loss_turns,
        )
        try:
            cut = cutter.cut(whole_tokens=length)
        except RejectedError as rejection:
            raise _too_long(f"{length} tokens, cannot be split: {rejection.detail}") from rejection
        if not cut.pieces:
            raise _too_long(
                f"expected exchanges of at most {limit} tokens, found none to keep among the "
                f"{cutter.num_exchanges} of {length} tokens; the longest has "
                f"{max(one.tokens for one in cut.lost)}."
            )
        drops = tuple(self._lost(item, one, num_exchanges=cutter.num_exchanges) for one in cut.lost)
        return (
            cut.pieces,
            drops,
            TokenizeCounts(
                split_conversations=1,
                dropped_pieces=len(drops),
                left_out_exchanges=cut.left_out_exchanges,
                lost_tokens=sum(one.new_tokens for one in cut.lost) + cut.left_out_tokens,
            ),
        )

    def _lost(self, item: StoredConversation, lost: LostExchanges, *, num_exchanges: int) -> Drop:
        """The drop of exchanges that are in no piece of a conversation that is kept."""
        first, last = lost.messages
        numbers = f"{lost.first + 1}" + (f" to {lost.end}" if lost.end > lost.first + 1 else "")
        where = f"exchange {numbers} of {num_exchanges} (messages {first} to {last})"
        if lost.tokens > self._limit:
            reason = DropReason.TOO_LONG
            found = (
                f"expected at most {self._limit} tokens, found {lost.tokens} with the system "
                f"message. A row length of {lost.tokens - 1} would hold it."
            )
        else:
            reason = DropReason.NOTHING_SUPERVISED
            found = "a piece of its own would have no supervised token."
        return Drop(
            reason=reason,
            detail=f"{where} of a split conversation: {found}",
            uri=item.uri,
            line=item.line,
            document_id=item.document_id,
            tokens=lost.new_tokens,
        )


def _too_long(detail: str) -> RejectedError:
    return RejectedError(DropReason.TOO_LONG, detail)


def _document(item: StoredConversation, *, piece: int, tokens: Tokenized) -> Document:
    return Document(
        document_id=document_id(item.conversation, piece=piece) if piece else item.document_id,
        tokens=tokens.tokens,
        target_runs=tokens.target_runs,
        source=item.source,
        uri=item.uri,
        line=item.line,
        piece=piece,
    )


def _dropped(
    item: StoredConversation, error: RejectedError | RecursionError, *, tokens: int = 0
) -> Outcome:
    if isinstance(error, RecursionError):
        error = RejectedError(
            DropReason.UNREADABLE, "expected tools and calls of less depth: nested too deeply."
        )
    drop = Drop(
        reason=error.reason,
        detail=error.detail,
        uri=item.uri,
        line=item.line,
        document_id=item.document_id,
        tokens=tokens,
    )
    return Outcome(drops=(drop,), counts=TokenizeCounts(conversations=1))
