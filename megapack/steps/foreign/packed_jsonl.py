"""Records of `.jsonl.packed`, checked as a loader that tokenizes them would meet them.

The loader cuts a record at its system messages, tokenizes each conversation, cuts off what does
not fit the row, and takes the loss off every label that *equals* its pad id.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megapack.conversation.config import (
    LongDocumentPolicy,
    LossOn,
    PromptFormat,
    TokenizeConfig,
)
from megapack.conversation.encoder import Encoder
from megapack.conversation.messages import document_id
from megapack.conversation.parse import parse_conversation
from megapack.conversation.prompt import resolve_pad_id
from megapack.conversation.rejection import RejectedError
from megapack.conversation.shapes import read_shape
from megapack.conversation.split import Merged, split_conversations
from megapack.conversation.tokenize import ConversationTokenizer
from megapack.layout.runs import mask_of_runs
from megapack.records.document import Document
from megapack.records.stored_conversation import StoredConversation
from megapack.steps.foreign.faults import Fault, FaultLog

_ANY_LENGTH = 1 << 30
NO_TOKENIZER = (
    "tokens of the conversations: give --tokenizer and --format (nemotron-h-aligned, "
    "nemotron-nano-v2, identity or chat_template)"
)
NO_ROW_LENGTH = "whether conversations fit their row: give --row-length"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """What the loader is told.

    Attributes:
        form: prompt format.
        loss_on: what is supervised.
        row_length: positions of a row, None when not known.
    """

    form: PromptFormat
    loss_on: LossOn
    row_length: int | None


class PackedJsonlChecks:
    """Checks records of conversations."""

    def __init__(
        self, encoder: Encoder | None, settings: LoaderSettings | None, *, log: FaultLog
    ) -> None:
        """Prepare.

        Args:
            encoder: the loader's tokenizer; without it only the messages are checked.
            settings: what the loader is told; None without a format.
            log: takes the faults.

        Raises:
            ConfigError: the tokenizer cannot be used under the format.
        """
        self._log = log
        self._settings = settings
        self._tokenizer: ConversationTokenizer | None = None
        if encoder is None or settings is None:
            log.unchecked(NO_TOKENIZER)
            return
        config = TokenizeConfig(
            format=settings.form,
            loss_on=settings.loss_on,
            long_documents=LongDocumentPolicy.ERROR,
        )
        self._tokenizer = ConversationTokenizer(encoder=encoder, config=config, limit=_ANY_LENGTH)
        self._pad_id = resolve_pad_id(settings.form, encoder=encoder, config=config)
        if settings.row_length is None:
            log.unchecked(NO_ROW_LENGTH)

    def check(self, record: Mapping[str, Any], *, where: str) -> None:
        """All checks of a record."""
        try:
            parts = split_conversations(read_shape(record), merged=Merged.AT_SYSTEM_MESSAGES)
        except RejectedError as rejection:
            self._unusable(where, rejection.reason.value, rejection.detail)
            return
        positions = 0
        for number, part in enumerate(parts):
            place = f"{where} conversation {number}"
            try:
                text = parse_conversation(part).dumps()
            except RejectedError as rejection:
                self._unusable(place, rejection.reason.value, rejection.detail)
                continue
            positions += self._tokens(text, where=place)
        length = None if self._settings is None else self._settings.row_length
        if length is not None and positions > length:
            self._log.add(
                Fault.ROW_TOO_LONG,
                where,
                expected=f"at most {length} tokens over {len(parts)} conversations",
                found=f"{positions}: the loader cuts off the rest, with its end tokens",
            )

    def _tokens(self, text: str, *, where: str) -> int:
        """Tokens of a conversation, 0 when it cannot be tokenized."""
        if self._tokenizer is None or self._settings is None:
            return 0
        stored = StoredConversation(
            document_id=document_id(text), conversation=text, format=self._settings.form.value
        )
        outcome = self._tokenizer.tokenize([stored])
        for drop in outcome.drops:
            self._unusable(where, drop.reason.value, drop.detail)
        for document in outcome.documents:
            self._check_pad(document, where=where)
        return sum(document.num_tokens for document in outcome.documents)

    def _check_pad(self, document: Document, *, where: str) -> None:
        learnt = mask_of_runs(document.target_runs, document.num_tokens)
        lost = int((learnt & (document.tokens == self._pad_id)).sum())
        if lost:
            self._log.add(
                Fault.LOSS_LOST_BY_VALUE,
                where,
                expected=f"no learnt token that equals the loader's pad id {self._pad_id}",
                found=f"{lost}, which it takes for padding. Give it another pad token",
            )

    def _unusable(self, where: str, reason: str, detail: str) -> None:
        self._log.add(
            Fault.UNUSABLE_CONVERSATION,
            where,
            expected="a conversation that the format can express",
            found=f"{reason}: {detail}",
        )
