"""An engine of ids alone, with the places that the lengths of byte-level tokens give.

Texts that the tokenizer changes before it cuts them, and texts whose bytes the tokens do not add up
to, go to the reference engine one by one.
"""

from collections.abc import Callable, Sequence

import numpy as np

from megapack.conversation.byte_places import ByteLengths
from megapack.conversation.encoder import Encoded, EncodedBatch, characters_of
from megapack.conversation.text_engine import TextEngine
from megapack.layout.runs import Int32, Int64

Flat = Callable[[Sequence[str]], tuple[Int32, Int64]]
"""Texts -> int32 [T], their tokens, and int64 [N+1], where those of each begin."""


class PlacedEngine:
    """A `TextEngine` on an engine of ids."""

    def __init__(
        self, flat: Flat, *, name: str, lengths: ByteLengths, reference: TextEngine
    ) -> None:
        """Prepare.

        Args:
            flat: gives ids; a ValueError or RuntimeError of it sends a batch to the reference.
            name: what logs call this engine.
            lengths: of the tokenizer.
            reference: takes the texts that cannot be placed.
        """
        self.name = name
        self._flat = flat
        self._lengths = lengths
        self._reference = reference

    def encode(self, texts: Sequence[str]) -> EncodedBatch:
        """Encode texts."""
        odd = {at for at, text in enumerate(texts) if self._is_odd(text)}
        taken = [text for at, text in enumerate(texts) if at not in odd]
        try:
            ids, tokens = self._flat(taken)
        except (ValueError, RuntimeError):
            return self._reference.encode(texts)
        batch, wrong = self._lengths.places(taken, ids, tokens)
        if not odd and not wrong.size:
            return batch
        return self._mended(texts, odd=odd, taken=taken, flat=(ids, tokens), wrong=wrong)

    def _is_odd(self, text: str) -> bool:
        """Whether the tokenizer changes it, or it is no Unicode text."""
        if text.isascii():
            return False
        try:
            text.encode()
        except UnicodeEncodeError:
            return True
        return self._lengths.changes(text)

    def _mended(
        self,
        texts: Sequence[str],
        *,
        odd: set[int],
        taken: Sequence[str],
        flat: tuple[Int32, Int64],
        wrong: Int64,
    ) -> EncodedBatch:
        """The batch with its odd and its wrongly summed texts encoded by the reference."""
        ids, tokens = flat
        bad = set(wrong.tolist())
        sums = iter(
            None if number in bad else self._one(text, ids[tokens[number] : tokens[number + 1]])
            for number, text in enumerate(taken)
        )
        found = [None if at in odd else next(sums) for at in range(len(texts))]
        again = self._reference.encode([texts[at] for at, one in enumerate(found) if one is None])
        rest = iter(again)
        return EncodedBatch.of(
            (next(rest) if one is None else one for one in found),
            characters=characters_of(texts),
        )

    def _one(self, text: str, ids: Int32) -> Encoded:
        batch, _ = self._lengths.places([text], ids, np.array([0, ids.size], dtype=np.int64))
        return batch[0]
