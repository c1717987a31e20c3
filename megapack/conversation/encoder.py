"""The Encoder protocol, and the tokens of texts with the characters that each covers.

Tokens of one character cut into bytes share that character's span, so no byte lands on the wrong
side. Letters: N texts of C characters and T tokens in all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, overload

import numpy as np

from megapack.conversation.config import TokenizeConfig, TypedControlTokens
from megapack.conversation.control import ControlTokens
from megapack.layout.runs import Int32, Int64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """Tokens of one text.

    Attributes:
        ids: int32 [n].
        starts: int32 [n], first character of each token.
        ends: int32 [n], one past the last; equal to `starts` for a token of no character.
    """

    ids: Int32
    starts: Int32
    ends: Int32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedBatch(Sequence[Encoded]):
    """Tokens of N texts, one text after another; as a sequence, the tokens of each text.

    Attributes:
        ids: int32 [T].
        starts: int64 [T], first character of each token, counted over all texts.
        ends: int64 [T], one past the last, counted over all texts.
        tokens: int64 [N+1], where the tokens of each text begin; the last is T.
        characters: int64 [N+1], where each text begins; the last is C.
    """

    ids: Int32
    starts: Int64
    ends: Int64
    tokens: Int64
    characters: Int64

    @classmethod
    def of(cls, texts: Iterable[Encoded], *, characters: Int64) -> "EncodedBatch":
        """Put the tokens of texts together.

        Args:
            texts: tokens of N texts.
            characters: int64 [N+1], where each text begins.
        """
        parts = list(texts)
        sizes = np.fromiter((part.ids.size for part in parts), dtype=np.int64, count=len(parts))
        bases = np.repeat(characters[:-1], sizes)
        return cls(
            ids=_joined([part.ids for part in parts]),
            starts=_joined([part.starts for part in parts]) + bases,
            ends=_joined([part.ends for part in parts]) + bases,
            tokens=offsets_of(sizes),
            characters=characters,
        )

    def __len__(self) -> int:
        return self.tokens.size - 1

    @overload
    def __getitem__(self, index: int) -> Encoded: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Encoded]: ...
    def __getitem__(self, index: int | slice) -> Encoded | Sequence[Encoded]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        chosen = slice(self.tokens[number], self.tokens[number + 1])
        base = self.characters[number]
        return Encoded(
            ids=self.ids[chosen],
            starts=(self.starts[chosen] - base).astype(np.int32),
            ends=(self.ends[chosen] - base).astype(np.int32),
        )

    def __iter__(self) -> Iterator[Encoded]:
        return (self[number] for number in range(len(self)))


def offsets_of(sizes: Int64) -> Int64:
    """int64 [N+1]: where each of N things begins; the last is the sum of their sizes."""
    offsets = np.zeros(sizes.size + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def characters_of(texts: Sequence[str]) -> Int64:
    """int64 [N+1]: where each text begins, counted in characters."""
    return offsets_of(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))


def _joined(arrays: Sequence[Int32]) -> Int32:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32)


class Encoder(Protocol):
    """A tokenizer engine. Never adds a token by itself and never truncates."""

    @property
    def digest(self) -> str:
        """SHA-256 over the tokenizer's files: equal digests give equal ids."""

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id."""

    @property
    def bos_ids(self) -> Int32:
        """int32 [0 or more]: what the tokenizer's own post-processor puts in front of a text."""

    @property
    def control(self) -> ControlTokens:
        """Its control tokens."""

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Named special tokens: `bos_token`, `eos_token`, `pad_token`, ..."""

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Jinja texts by name; the main one is `default`."""

    def token_id(self, token: str) -> int | None:
        """Id of a token's text, None when there is none."""

    def encode(self, texts: Sequence[str]) -> EncodedBatch:
        """Encode texts; control tokens found in them become control tokens."""

    def encode_protected(self, texts: Sequence[str]) -> EncodedBatch:
        """Encode texts of `ControlTokens.protect`; offsets are in those texts."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included."""


def typed_control(encoder: Encoder, *, config: TokenizeConfig) -> ControlTokens:
    """The control tokens that stay text where people typed them; none when the job says so."""
    if config.typed_control_tokens is TypedControlTokens.CONTROL:
        return ControlTokens(())
    return encoder.control
