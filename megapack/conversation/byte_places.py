"""Where the tokens of a byte-level tokenizer stand, from their ids alone.

Such a tokenizer cuts the UTF-8 bytes of a text, and keeps each of them: so the lengths of its
tokens in bytes, looked up by id and summed, say where each token ends. Which tokenizers are such is
read off `tokenizer.json` (`ByteLengths.of`); a text whose lengths do not add up to its bytes is
reported and placed by nobody here. About 15 ns a token, whole batches at a time.
"""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megapack.conversation.encoder import EncodedBatch, characters_of, offsets_of
from megapack.conversation.text_engine import EngineUnusableError
from megapack.layout.runs import Bool, Int32, Int64

_NO_TOKEN = 1 << 40
"""Length of an id that stands for no bytes: more than any text has, so that no sum is right."""
_LAST_CONTINUATION = 0xBF - 0x100
"""As a signed number: of all bytes, those that continue a character, 0x80 to 0xBF, are least."""
_CUTTERS = ("Split", "Digits", "Punctuation", "ByteLevel")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ByteLengths:
    """Bytes of each token of one tokenizer.

    Attributes:
        by_id: int64 [V+1]: bytes of each id; the last for ids beyond the vocabulary.
        composes: whether texts go through NFC first, which keeps the bytes of texts in that form.
    """

    by_id: Int64
    composes: bool

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "ByteLengths":
        """Read them off a tokenizer.

        Args:
            state: `tokenizer.json`.

        Raises:
            EngineUnusableError: it is not a byte-level BPE that keeps every byte.
        """
        composes = _composes(state)
        _check_cutters(state)
        vocabulary = _vocabulary(state)
        symbols = _byte_symbols()
        lengths = {
            index: len(token) for token, index in vocabulary.items() if symbols.issuperset(token)
        }
        missing = symbols.difference(vocabulary)
        if missing:
            raise EngineUnusableError(
                f"it is not byte-level: its vocabulary lacks {len(missing)} of the 256 byte symbols"
            )
        added = state.get("added_tokens") or []
        lengths |= {token["id"]: len(token["content"].encode()) for token in added}
        by_id = np.full(max(lengths) + 2, _NO_TOKEN, dtype=np.int64)
        by_id[np.fromiter(lengths, dtype=np.int64)] = np.fromiter(lengths.values(), dtype=np.int64)
        return cls(by_id=by_id, composes=composes)

    def changes(self, text: str) -> bool:
        """Whether the tokenizer changes a text before it cuts it."""
        return self.composes and not unicodedata.is_normalized("NFC", text)

    def places(self, texts: Sequence[str], ids: Int32, tokens: Int64) -> tuple[EncodedBatch, Int64]:
        """Place the tokens of texts.

        Args:
            texts: N texts that can be encoded as UTF-8.
            ids: int32 [T], their tokens.
            tokens: int64 [N+1], where the tokens of each text begin.

        Returns:
            The tokens with their characters; and the numbers of texts, int64, whose tokens do not
            add up to their bytes. When there are any, no place in the batch is right.
        """
        characters = characters_of(texts)
        encoded = [text.encode() for text in texts]
        sizes = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        lengths = self.by_id.take(ids, mode="clip")
        edges = offsets_of(lengths)
        wrong = np.flatnonzero(np.diff(edges[tokens]) != sizes)
        starts, ends = edges[:-1], edges[1:]
        # As many bytes as characters: each byte is one.
        if sizes.sum() > characters[-1] and not wrong.size:
            of_byte = _characters_of_bytes(b"".join(encoded))
            starts, ends = of_byte.take(starts), of_byte.take(ends - 1) + 1
        return (
            EncodedBatch(ids=ids, starts=starts, ends=ends, tokens=tokens, characters=characters),
            wrong,
        )


def _characters_of_bytes(text: bytes) -> Int64:
    """The character that each byte of a text belongs to."""
    first: Bool = np.frombuffer(text, dtype=np.int8) > _LAST_CONTINUATION
    return np.cumsum(first, dtype=np.int64) - 1


def _composes(state: Mapping[str, Any]) -> bool:
    """Whether NFC is its normalizer; none is fine too."""
    steps = list(_steps(state.get("normalizer"), inner="normalizers"))
    kinds = [step["type"] for step in steps]
    if set(kinds) - {"NFC"}:
        raise EngineUnusableError(
            f"it is not byte-level: its normalizer is {' and '.join(kinds)}, which changes texts"
        )
    return bool(steps)


def _check_cutters(state: Mapping[str, Any]) -> None:
    steps = list(_steps(state.get("pre_tokenizer"), inner="pretokenizers"))
    odd = [step["type"] for step in steps if step["type"] not in _CUTTERS or _removes(step)]
    if odd:
        raise EngineUnusableError(
            f"it is not byte-level: its pre-tokenizer {odd[0]} may change or remove text"
        )
    levels = [step for step in steps if step["type"] == "ByteLevel"]
    if len(levels) != 1 or steps[-1]["type"] != "ByteLevel":
        raise EngineUnusableError(
            "it is not byte-level: its pre-tokenizer does not end in ByteLevel"
        )


def _removes(step: Mapping[str, Any]) -> bool:
    behavior = str(step.get("behavior", "")).lower()
    return behavior == "removed" or bool(step.get("add_prefix_space"))


def _steps(part: Mapping[str, Any] | None, *, inner: str) -> Iterator[Mapping[str, Any]]:
    """A component, or those of a sequence of them."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for step in part[inner]:
        yield from _steps(step, inner=inner)


def _vocabulary(state: Mapping[str, Any]) -> Mapping[str, int]:
    model = state["model"]
    if model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), Mapping):
        raise EngineUnusableError(
            f"it is not byte-level: its model is {model.get('type')}, not BPE"
        )
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise EngineUnusableError(f"it is not byte-level: its model has {key} {model[key]!r}")
    if model.get("byte_fallback"):
        raise EngineUnusableError(
            "it is not byte-level: its model falls back to bytes, so its symbols are characters"
        )
    vocabulary: Mapping[str, int] = model["vocab"]
    return vocabulary


def _byte_symbols() -> frozenset[str]:
    """The 256 characters that stand for bytes: printable ones for themselves, others from 256."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return frozenset(map(chr, printable)) | frozenset(
        chr(0x100 + number) for number in range(0x100 - len(printable))
    )
