"""P6: a conversation to ids and assistant mask, against the tokenizing of other trainers.

Ours starts from the canonical JSON of a conversation and ends with the finished `Document`, as the
tokenize step does it, with the self-check of the engine; peers start from Python lists. Every text
is measured the first time that it is seen, after a warm-up on others. A ratio is that of the whole
sums over rounds, in which all take turns: a machine that others load is then slow for all of them.
Ids and masks are compared conversation by conversation; a difference in ids ends the run.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from benchmarks.chats import Chat, chats
from benchmarks.peers_tokenize import Tokenize, Tokenized, hugging_face, megatron_sft, trl_dataset
from benchmarks.record import at_least, emit, missing
from benchmarks.tekken import tekken_folder
from megapack.conversation.checked_encoder import CheckedEncoder
from megapack.conversation.config import Engine, LongDocumentPolicy, PromptFormat, TokenizeConfig
from megapack.conversation.engines import Engines
from megapack.conversation.messages import Conversation, Message, Role, document_id
from megapack.conversation.tokenize import ConversationTokenizer
from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.layout.runs import mask_of_runs
from megapack.records.stored_conversation import StoredConversation

_ROUNDS, _BATCH = 6, 256
_PER_ROUND = {"fast": 2 * _BATCH, "reference": 30, "peer": 10}
_WARM_UP = 300
_LIMIT = 1 << 20
_NANO, _TEMPLATE = PromptFormat.NEMOTRON_NANO_V2, PromptFormat.CHAT_TEMPLATE
_TOKENIZER = "tekken 131072"

Work = Callable[[Sequence[Any]], list[Tokenized]]
Prepare = Callable[[Sequence[Chat]], Sequence[Any]]


@dataclass(slots=True)
class _Way:
    """One way to tokenize, and what it did so far.

    Attributes:
        prepare: puts conversations into the form it starts from; not measured.
        work: tokenizes them.
        share: conversations of a round that it gets.
        tokens: made, in all rounds.
        seconds: CPU time it took.
        made: what it made, by round.
    """

    prepare: Prepare
    work: Work
    share: int
    tokens: int = 0
    seconds: float = 0.0
    made: list[list[Tokenized]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Million tokens a CPU second."""
        return self.tokens / self.seconds / 1e6


def main() -> None:
    """Print goal lines for a Megatron format and for a chat template."""
    try:
        folder = tekken_folder()
    except ImportError as error:
        missing("P6", "conversation to ids and mask", peer="all", why=f"no tokenizer: {error}")
        return
    texts = chats(_WARM_UP + _ROUNDS * _PER_ROUND["fast"])
    _compare(folder, _NANO, {"megatron": lambda: _each(megatron_sft(folder, _NANO.value))}, texts)
    peers: dict[str, Callable[[], Work]] = {
        "hugging face": lambda: _each(hugging_face(folder)),
        "trl": lambda: trl_dataset(folder),
    }
    _compare(folder, _TEMPLATE, peers, texts)


def _compare(
    folder: Path,
    form: PromptFormat,
    peers: dict[str, Callable[[], Work]],
    texts: Sequence[Chat],
) -> None:
    ways: dict[str, _Way] = {}
    for name, make in peers.items():
        try:
            ways[name] = _Way(list, make(), _PER_ROUND["peer"])
        except ImportError as error:
            missing("P6", f"{form.value}: fast engine against {name}", peer=name, why=str(error))
    found = list(ways)
    for engine in (Engine.FAST, Engine.REFERENCE):
        ways[engine.value] = _Way(
            partial(_stored, form=form), _ours(folder, engine), _PER_ROUND[engine.value]
        )
    _take_turns(ways, texts)
    fast, reference = ways[Engine.FAST], ways[Engine.REFERENCE]
    emit(
        "tokenize",
        format=form.value,
        tokenizer=_TOKENIZER,
        tokens_a_conversation=round(fast.tokens / (_ROUNDS * fast.share)),
        **{
            f"{name.replace(' ', '_')}_mtok_per_cpu_s": round(w.rate, 3) for name, w in ways.items()
        },
    )
    _masks_that_differ("the reference engine", reference, fast)
    for name in found:
        differing = _masks_that_differ(name, ways[name], fast)
        ours = [("fast engine", fast, 60.0 if name == "megatron" else 20.0)]
        ours += [("reference engine", reference, 3.0)] if name == "megatron" else []
        for engine, way, bound in ours:
            at_least(
                "P6",
                f"{form.value}: {engine} against {name}",
                way.rate / ways[name].rate,
                bound,
                peer=_named(name),
                masks_that_differ=differing,
            )


def _take_turns(ways: dict[str, _Way], texts: Sequence[Chat]) -> None:
    for way in ways.values():
        way.work(way.prepare(texts[: min(_WARM_UP, way.share)]))
    # What is loaded only for the peers must not be searched for garbage at anyone's cost.
    gc.collect()
    gc.freeze()
    for number in range(_ROUNDS):
        start = _WARM_UP + number * _PER_ROUND["fast"]
        for way in ways.values():
            chosen = way.prepare(texts[start : start + way.share])
            begin = process_time()
            made = way.work(chosen)
            way.seconds += process_time() - begin
            way.tokens += sum(one.ids.size for one in made)
            way.made.append(made)


def _ours(folder: Path, engine: Engine) -> Work:
    config = TokenizeConfig(long_documents=LongDocumentPolicy.ERROR, engine=engine)
    engines = Engines.load(read_tokenizer_files(str(folder)), choice=engine)
    # One encoder for all rounds, as for one part: each part's first texts are checked.
    encoder = engines.checked()
    encoder.encode_protected(["loads the twin that typed control tokens need"])
    return partial(_tokenize, encoder=encoder, config=config)


def _tokenize(
    stored: Sequence[StoredConversation], *, encoder: CheckedEncoder, config: TokenizeConfig
) -> list[Tokenized]:
    tokenizer = ConversationTokenizer(encoder=encoder, config=config, limit=_LIMIT)
    made = []
    for start in range(0, len(stored), _BATCH):
        outcome = tokenizer.tokenize(stored[start : start + _BATCH])
        if outcome.drops:
            raise ValueError(f"expected no drops, found {outcome.drops[0]}")
        made += [
            Tokenized(one.tokens, mask_of_runs(one.target_runs, one.num_tokens))
            for one in outcome.documents
        ]
    return made


def _stored(texts: Sequence[Chat], *, form: PromptFormat) -> list[StoredConversation]:
    made = []
    for line, chat in enumerate(texts):
        turns = (Message(role=Role(turn["role"]), content=turn["content"]) for turn in chat)
        text = Conversation(messages=tuple(turns)).dumps()
        made.append(
            StoredConversation(
                document_id=document_id(text), conversation=text, format=form.value, line=line
            )
        )
    return made


def _each(work: Tokenize) -> Work:
    return lambda texts: [work(chat) for chat in texts]


def _masks_that_differ(name: str, way: _Way, ours: _Way) -> int:
    """Conversations whose masks differ from ours, among those that both tokenized.

    Raises:
        ValueError: ids differ.
    """
    differing = 0
    for number, (found, expected) in enumerate(zip(way.made, ours.made, strict=True)):
        for at, (one, other) in enumerate(zip(found, expected, strict=False)):
            if not np.array_equal(one.ids, other.ids):
                raise ValueError(f"{name}: ids of conversation {at} of round {number} differ")
            differing += not np.array_equal(one.mask[1:], other.mask[1:])
    return differing


def _named(peer: str) -> str:
    """The peer with its version."""
    package = {"megatron": "megatron-core", "hugging face": "transformers", "trl": "trl"}[peer]
    return f"{peer} ({package} {version(package)})"


if __name__ == "__main__":
    main()
