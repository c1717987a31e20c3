"""What stands around an answer in tokens: how it opens, how it ends, and what pads.

With a tokenizer the markers are exact: two chats of the same turns and other words are tokenized
as megapack would, and what their contexts and answers have in common is the format's. Without one
the file itself is asked: an id that stands before (or ends) most of its answers is taken for the
marker. That finds rows that differ, and masks that come one token late throughout; a file that is
wrong throughout in another way looks consistent.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from megapack.conversation.config import LongDocumentPolicy, PromptFormat, TokenizeConfig
from megapack.conversation.encoder import Encoder
from megapack.conversation.messages import Conversation, Message, Role
from megapack.conversation.prompt import resolve_pad_id
from megapack.conversation.tokenize import ConversationTokenizer
from megapack.records.document import Document
from megapack.records.stored_conversation import StoredConversation
from megapack.steps.foreign.rows import ForeignRow

Ids = tuple[int, ...]

_LONGEST = 4
_PROBE_WORDS = 8
_PROBE_TOKENS = 1 << 16
_ASKED_ROWS = 512
_MOST = 0.6
_NEARLY_ALL = 0.95
_FEWEST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """Ids that tell where answers, documents and padding lie.

    Attributes:
        opens: what stands right before an answer; nothing is checked when empty.
        ends: what an answer ends in; nothing is checked when empty.
        pads: ids that pad.
        may_end: ids of `pads` that end documents too: the first of several is no padding.
        bos: what every document begins with; may be empty.
        vocabulary: number of ids, None when unknown.
    """

    opens: frozenset[Ids] = frozenset()
    ends: frozenset[Ids] = frozenset()
    pads: frozenset[int] = frozenset()
    may_end: frozenset[int] = frozenset()
    bos: Ids = ()
    vocabulary: int | None = None


def of_tokenizer(encoder: Encoder, form: PromptFormat | None) -> Markers:
    """Markers of a tokenizer, and of a format when one is named or the tokenizer has a template.

    Raises:
        ConfigError: the format cannot be used with this tokenizer.
    """
    config = TokenizeConfig(
        format=form or PromptFormat.CHAT_TEMPLATE, long_documents=LongDocumentPolicy.ERROR
    )
    named = {
        name: encoder.token_id(text)
        for name, text in encoder.special_tokens.items()
        if name in ("pad_token", "eos_token")
    }
    pads = {found for found in named.values() if found is not None}
    opens: set[Ids] = set()
    ends: set[Ids] = set()
    if form is not None:
        pads.add(resolve_pad_id(form, encoder=encoder, config=config))
        control = {encoder.token_id(text) for text in encoder.control.literals}
        for first, second in _probes(encoder, config):
            before = _common_end(*(tokens[:start] for tokens, start, _ in (first, second)))
            opens.add(_from_control(before[-_LONGEST:], control))
            learnt = _common_end(*(tokens[start:end] for tokens, start, end in (first, second)))
            ends.add(_from_control(learnt, control))
    known_ends = {one[0] for one in ends if one}
    # A format that ends answers otherwise never ends them in the tokenizer's end token.
    may_end = known_ends if opens else known_ends | {named.get("eos_token")}
    return Markers(
        opens=frozenset(one for one in opens if one),
        ends=frozenset(one for one in ends if one),
        pads=frozenset(pads),
        may_end=frozenset(pads & may_end),
        bos=tuple(encoder.bos_ids.tolist()),
        vocabulary=encoder.vocabulary_size,
    )


def of_rows(rows: Iterable[ForeignRow]) -> Markers:
    """Markers that most answers of some rows have in common."""
    before: Counter[int] = Counter()
    earlier: Counter[int] = Counter()
    last: Counter[int] = Counter()
    trailing: Counter[int] = Counter()
    for row in islice(rows, _ASKED_ROWS):
        for _, start, end in row.documents():
            for begin, stop in row.answers(start, end):
                before[int(row.tokens[begin - 1])] += begin > start
                earlier[int(row.tokens[begin - 2])] += begin > start + 1
                last[int(row.tokens[stop - 1])] += 1
            if trailing_run(row.tokens[start:end]) > 1 and not row.learnt[end - 1]:
                trailing[int(row.tokens[end - 1])] += 1
    # Answers that open differently, but all alike one token earlier, are learnt one late.
    opens = _majority(before) or _majority(earlier, share=_NEARLY_ALL)
    ends, pads = _majority(last), _majority(trailing)
    return Markers(
        opens=frozenset({(one,) for one in opens}),
        ends=frozenset({(one,) for one in ends}),
        pads=pads,
        may_end=pads & ends,
    )


def trailing_run(tokens: np.ndarray) -> int:
    """How often the last value is repeated at the end."""
    other = np.flatnonzero(tokens != tokens[-1]) if tokens.size else tokens
    return int(tokens.size - (other[-1] + 1 if other.size else 0))


def _majority(counts: Counter[int], *, share: float = _MOST) -> frozenset[int]:
    total = sum(counts.values())
    common = counts.most_common(1)
    if total >= _FEWEST and common[0][1] >= share * total:
        return frozenset({common[0][0]})
    return frozenset()


_Answer = tuple[Ids, int, int]


def _probes(encoder: Encoder, config: TokenizeConfig) -> list[tuple[_Answer, _Answer]]:
    """Pairs of the same answer in two chats of other words: tokens, start and end of the answer."""
    words = _words(encoder)
    if len(words) < _PROBE_WORDS:
        return []
    tokenizer = ConversationTokenizer(encoder=encoder, config=config, limit=_PROBE_TOKENS)
    pairs: list[tuple[_Answer, _Answer]] = []
    half = len(words) // 2
    for system in (True, False):
        chats = [_chat(words[:half], system=system), _chat(words[half:], system=system)]
        documents = tokenizer.tokenize([_stored(chat, config.format) for chat in chats]).documents
        if len(documents) != len(chats):
            continue
        answers = [_answers(document) for document in documents]
        if len(answers[0]) == len(answers[1]):
            pairs += list(zip(*answers, strict=True))
    return pairs


def _answers(document: Document) -> list[_Answer]:
    tokens = tuple(document.tokens.tolist())
    runs = document.target_runs.tolist()
    return [(tokens, start, end) for start, end in zip(runs[0::2], runs[1::2], strict=True)]


def _chat(words: Sequence[str], *, system: bool) -> Conversation:
    roles = [Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT]
    messages = [Message(role=role, content=word) for role, word in zip(roles, words, strict=False)]
    head = [Message(role=Role.SYSTEM, content="be brief")] if system else []
    return Conversation(messages=(*head, *messages))


def _stored(chat: Conversation, form: PromptFormat) -> StoredConversation:
    return StoredConversation(document_id="0" * 32, conversation=chat.dumps(), format=form.value)


def _words(encoder: Encoder) -> list[str]:
    """Eight words that the tokenizer knows and tells apart, first and last tokens included."""
    words: dict[str, None] = {}
    seen: set[int] = set()
    for number in range(encoder.vocabulary_size):
        text = encoder.decode([number]).strip()
        if not (text.isascii() and text.isalnum()):
            continue
        ids = encoder.encode([text])[0].ids.tolist()
        if len(ids) == 1 and ids[0] not in seen and encoder.decode(ids).strip() == text:
            words[text] = None
            seen.add(ids[0])
        if len(words) == _PROBE_WORDS:
            break
    return list(words)


def _common_end(first: Ids, second: Ids) -> Ids:
    length = 0
    while length < min(len(first), len(second)) and first[-1 - length] == second[-1 - length]:
        length += 1
    return first[len(first) - length :]


def _from_control(ids: Ids, control: set[int | None]) -> Ids:
    """From the first control token on: what comes before may be joined to a word."""
    at = next((index for index, one in enumerate(ids) if one in control), None)
    return ids if at is None else ids[at:]
