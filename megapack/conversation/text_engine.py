"""`TextEngine`: what turns texts into tokens, and why one cannot be used."""

from collections.abc import Sequence
from typing import Protocol

from megapack.conversation.encoder import EncodedBatch


class TextEngine(Protocol):
    """Turns texts into tokens with their places, as the reference engine does."""

    @property
    def name(self) -> str:
        """What logs call it."""

    def encode(self, texts: Sequence[str]) -> EncodedBatch:
        """Encode texts; control tokens found in them become control tokens."""


class EngineUnusableError(Exception):
    """An engine cannot be used with a tokenizer; the message says why, without a full stop."""
