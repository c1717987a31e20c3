"""Renders -> tokens and supervised runs, a batch at a time: the one path for documents and counts.

Runs are found for all renders of a batch at once; per render remain a few slices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from megapack.conversation.encoder import EncodedBatch, Encoder
from megapack.conversation.render import Render
from megapack.conversation.target_runs import in_order, joined_runs, overlapping, token_mask
from megapack.layout.runs import Bool, Int32, Int64, count_targets, mask_of_runs, runs_of_mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokenized:
    """One render as tokens.

    Attributes:
        tokens: int32 [n].
        target_runs: int32 [2R], runs of supervised tokens; never the first token, which nothing
            predicts.
        num_targets: supervised tokens.
        num_repeated: tokens of the head that a piece repeats.
    """

    tokens: Int32
    target_runs: Int32
    num_targets: int
    num_repeated: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens, n."""
        return int(self.tokens.size)

    @property
    def mask(self) -> Bool:
        """bool [n]: True where supervised."""
        return mask_of_runs(self.target_runs, self.num_tokens)

    def head(self, limit: int) -> "Tokenized":
        """The first tokens, at most `limit`."""
        runs = np.minimum(self.target_runs, limit).reshape(-1, 2)
        kept = runs[runs[:, 1] > runs[:, 0]]
        return Tokenized(
            tokens=self.tokens[:limit],
            target_runs=kept.reshape(-1),
            num_targets=int((kept[:, 1] - kept[:, 0]).sum()),
            num_repeated=min(self.num_repeated, limit),
        )


def tokenize_renders(renders: Sequence[Render], *, encoder: Encoder) -> list[Tokenized]:
    """Encode renders, plain and protected ones each in one batch."""
    plain = [render for render in renders if not render.protected]
    made = iter(_tokenized(plain, encode=encoder.encode, bos_ids=encoder.bos_ids))
    if len(plain) == len(renders):
        return list(made)
    protected = [render for render in renders if render.protected]
    typed = iter(_tokenized(protected, encode=encoder.encode_protected, bos_ids=encoder.bos_ids))
    return [next(typed if render.protected else made) for render in renders]


def _tokenized(
    renders: Sequence[Render],
    *,
    encode: Callable[[Sequence[str]], EncodedBatch],
    bos_ids: Int32,
) -> list[Tokenized]:
    if not renders:
        return []
    batch = encode([render.text for render in renders])
    added = [_lacks_bos(render, batch, at, bos_ids) for at, render in enumerate(renders)]
    # Documents keep slices of both as they are, as nobody can write into them.
    batch.ids.flags.writeable = False
    runs = _runs(renders, batch, free=np.array(added, dtype=np.bool_) & (bos_ids.size > 0))
    return [
        _one(render, batch, at=at, runs=runs[at], bos_ids=bos_ids if added[at] else bos_ids[:0])
        for at, render in enumerate(renders)
    ]


def _lacks_bos(render: Render, batch: EncodedBatch, at: int, bos_ids: Int32) -> bool:
    """Decided on ids: the template's text does not say what the tokenizer made of it."""
    if not render.begins_with_bos or not bos_ids.size:
        return False
    low, high = batch.tokens[at], batch.tokens[at + 1]
    return not np.array_equal(batch.ids[low : min(high, low + bos_ids.size)], bos_ids)


def _one(render: Render, batch: EncodedBatch, *, at: int, runs: Int32, bos_ids: Int32) -> Tokenized:
    low, high = batch.tokens[at], batch.tokens[at + 1]
    tokens = batch.ids[low:high]
    if bos_ids.size:
        tokens = np.concatenate((bos_ids, tokens))
        runs = runs + np.int32(bos_ids.size)
    repeated = 0
    if render.repeated:
        repeated = int((batch.ends[low:high] <= batch.characters[at] + render.repeated).sum())
    return Tokenized(
        tokens=tokens, target_runs=runs, num_targets=count_targets(runs), num_repeated=repeated
    )


def _runs(renders: Sequence[Render], batch: EncodedBatch, *, free: Bool) -> list[Int32]:
    """Supervised runs of each render, in tokens of its own text.

    Args:
        renders: N renders.
        batch: their tokens.
        free: bool [N]: True where a token will be put in front, so that the first may be one.
    """
    if not in_order(batch):
        return [_by_mask(render, batch, at=at, free=free) for at, render in enumerate(renders)]
    spans = [_spans(render) for render in renders]
    counts = np.fromiter(map(len, spans), dtype=np.int64, count=len(spans))
    text = np.repeat(np.arange(len(spans), dtype=np.int64), counts)
    flat = np.array([span for part in spans for span in part], dtype=np.int64).reshape(-1, 2)
    kept = flat[:, 1] > flat[:, 0]
    flat, text = flat[kept], text[kept]
    first, last = overlapping(batch, flat + batch.characters[text][:, None])
    first = np.maximum(first, (batch.tokens[:-1] + ~free)[text])
    first, last, text = joined_runs(first, last, text)
    edges = np.stack((first, last), axis=1) - batch.tokens[text][:, None]
    edges = edges.astype(np.int32)
    edges.flags.writeable = False
    return _cut(edges, text, count=len(renders))


def _cut(edges: Int32, text: Int64, *, count: int) -> list[Int32]:
    bounds = np.searchsorted(text, np.arange(count + 1)).tolist()
    return [edges[a:b].reshape(-1) for a, b in pairwise(bounds)]


def _spans(render: Render) -> Sequence[tuple[int, int]]:
    return ((render.repeated, len(render.text)),) if render.spans is None else render.spans


def _by_mask(render: Render, batch: EncodedBatch, *, at: int, free: Bool) -> Int32:
    """The same for tokens out of order or without characters, by a mask."""
    encoded = batch[at]
    if render.spans is None:
        mask = encoded.ends > render.repeated
    else:
        mask = token_mask(encoded, length=len(render.text), spans=render.spans)
    if not free[at]:
        mask[:1] = False
    return runs_of_mask(mask)
