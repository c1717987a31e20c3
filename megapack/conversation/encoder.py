"""The Encoder protocol, and how characters become a token mask.

A token is supervised when it overlaps a supervised character. So a token that joins the newline of
a header to the first newline of the answer is supervised whole, and one that joins the end of an
answer to what the template writes next is too: nothing that was to be learnt is lost. Tokens of
one character cut into bytes share that character's span, so no byte lands on the wrong side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from megapack.conversation.config import TokenizeConfig, TypedControlTokens
from megapack.conversation.control import ControlTokens
from megapack.conversation.render import Span
from megapack.layout.runs import Bool, Int32


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

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Encode texts; control tokens found in them become control tokens."""

    def encode_protected(self, texts: Sequence[str]) -> list[Encoded]:
        """Encode texts of `ControlTokens.protect`; offsets are in those texts."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included."""


def typed_control(encoder: Encoder, *, config: TokenizeConfig) -> ControlTokens:
    """The control tokens that stay text where people typed them; none when the job says so."""
    if config.typed_control_tokens is TypedControlTokens.CONTROL:
        return ControlTokens(())
    return encoder.control


def token_mask(encoded: Encoded, *, length: int, spans: Sequence[Span]) -> Bool:
    """Which tokens overlap supervised characters.

    Args:
        encoded: tokens of a text.
        length: characters of the text.
        spans: supervised characters of the text.

    Returns:
        bool [n]: True where supervised.
    """
    edges = np.zeros(length + 2, dtype=np.int32)
    for start, end in spans:
        edges[start + 1] += 1
        edges[end + 1] -= 1
    inside = np.cumsum(edges)
    covered = np.cumsum(inside)
    overlap = covered[encoded.ends] > covered[encoded.starts]
    empty = encoded.ends == encoded.starts
    mask: Bool = np.where(empty, inside[encoded.starts + 1] > 0, overlap)
    return mask
