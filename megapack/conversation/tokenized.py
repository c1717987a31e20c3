"""Renders -> tokens and masks, a batch at a time: the one code path for documents and counts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megapack.conversation.encoder import Encoded, Encoder, token_mask
from megapack.conversation.render import Render
from megapack.layout.runs import Bool, Int32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokenized:
    """One render as tokens.

    Attributes:
        tokens: int32 [n].
        mask: bool [n]: True where supervised; never the first, which nothing predicts.
        num_repeated: tokens of the head that a piece repeats.
    """

    tokens: Int32
    mask: Bool
    num_repeated: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens, n."""
        return int(self.tokens.size)

    @property
    def num_targets(self) -> int:
        """Supervised tokens."""
        return int(self.mask.sum())


def tokenize_renders(renders: Sequence[Render], *, encoder: Encoder) -> list[Tokenized]:
    """Encode renders, plain and protected ones each in one batch."""
    encoded: dict[int, Encoded] = {}
    for protected, encode in ((False, encoder.encode), (True, encoder.encode_protected)):
        chosen = [i for i, render in enumerate(renders) if render.protected is protected]
        if chosen:
            texts = [renders[i].text for i in chosen]
            encoded |= dict(zip(chosen, encode(texts), strict=True))
    return [
        _tokenized(render, encoded=encoded[i], bos_ids=encoder.bos_ids)
        for i, render in enumerate(renders)
    ]


def _tokenized(render: Render, *, encoded: Encoded, bos_ids: Int32) -> Tokenized:
    length = len(render.text)
    if render.spans is None:
        mask = encoded.ends > render.repeated
    else:
        mask = token_mask(encoded, length=length, spans=render.spans)
    tokens = encoded.ids
    # Decided on ids: the template's text does not say what the tokenizer made of it.
    if render.begins_with_bos and not np.array_equal(tokens[: bos_ids.size], bos_ids):
        tokens = np.concatenate((bos_ids, tokens))
        mask = np.concatenate((np.zeros(bos_ids.size, dtype=np.bool_), mask))
    mask[:1] = False
    repeated = int((encoded.ends <= render.repeated).sum()) if render.repeated else 0
    return Tokenized(tokens=tokens, mask=mask, num_repeated=repeated)
