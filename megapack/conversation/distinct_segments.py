"""Encoding each distinct stretch between control tokens once.

A tokenizer splits a text at its added tokens first and encodes what stands between them apart, so
a header, a system message or a turn that comes many times in a batch needs to be encoded once. This
holds where nothing looks beyond a split, which `DistinctSegments` checks on `tokenizer.json`. Texts
are cut nowhere else: a turn that begins with newlines merges with what stands before it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from megapack.conversation.encoder import EncodedBatch, characters_of, offsets_of
from megapack.conversation.text_engine import EngineUnusableError, TextEngine
from megapack.layout.runs import Int64

_FLAGS = ("single_word", "lstrip", "rstrip")


class DistinctSegments:
    """A `TextEngine` on another: the same tokens, with repeated text encoded once a batch."""

    name = "distinct segments"

    def __init__(self, state: Mapping[str, Any], *, engine: TextEngine) -> None:
        """Find where texts may be cut.

        Args:
            state: `tokenizer.json`, without post-processor.
            engine: encodes the segments.

        Raises:
            EngineUnusableError: cutting at this tokenizer's added tokens may change its tokens.
        """
        added = state.get("added_tokens") or []
        _check(state, added)
        # The other added tokens are looked for after normalization, within a segment.
        self._ids = {
            token["content"]: token["id"]
            for token in added
            if not token["normalized"] and token["content"]
        }
        if not self._ids:
            raise EngineUnusableError("the tokenizer has no added token to cut texts at")
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self._engine = engine

    def encode(self, texts: Sequence[str]) -> EncodedBatch:
        """Encode texts."""
        split = [[part for part in self._pattern.split(text) if part] for text in texts]
        numbers: dict[str, int] = {}
        order = np.fromiter(
            (numbers.setdefault(part, len(numbers)) for parts in split for part in parts),
            dtype=np.int64,
        )
        sizes = np.fromiter(map(len, split), dtype=np.int64, count=len(split))
        distinct = list(numbers)
        return _gathered(
            self._distinct(distinct),
            lengths=np.fromiter(map(len, distinct), dtype=np.int64, count=len(distinct)),
            order=order,
            per_text=offsets_of(sizes),
            characters=characters_of(texts),
        )

    def _distinct(self, parts: Sequence[str]) -> EncodedBatch:
        """Tokens of distinct parts; a control token is one token."""
        plain = [part for part in parts if part not in self._ids]
        found = self._engine.encode(plain)
        order: Iterator[int] = iter(range(len(plain)))
        at = np.fromiter(
            (-1 - self._ids[part] if part in self._ids else next(order) for part in parts),
            dtype=np.int64,
            count=len(parts),
        )
        return _with_control(found, at, characters=characters_of(parts))


def _with_control(found: EncodedBatch, at: Int64, *, characters: Int64) -> EncodedBatch:
    """Put control tokens between encoded texts.

    Args:
        found: N encoded texts.
        at: int64 [M]: for each part the number of its text, or -1 - id of a control token.
        characters: int64 [M+1], where each part begins.
    """
    control = at < 0
    counts = np.ones(at.size, dtype=np.int64)
    counts[~control] = np.diff(found.tokens)[at[~control]]
    tokens = offsets_of(counts)
    single = tokens[:-1][control]
    others = np.ones(tokens[-1], dtype=np.bool_)
    others[single] = False
    # Texts keep their order among the parts, so their tokens fill what is left, in order.
    moved = np.repeat(characters[:-1][~control] - found.characters[:-1], np.diff(found.tokens))
    ids = np.empty(tokens[-1], dtype=np.int32)
    starts, ends = (np.empty(tokens[-1], dtype=np.int64) for _ in range(2))
    ids[others], starts[others], ends[others] = found.ids, found.starts + moved, found.ends + moved
    ids[single] = -1 - at[control]
    starts[single], ends[single] = characters[:-1][control], characters[1:][control]
    return EncodedBatch(ids=ids, starts=starts, ends=ends, tokens=tokens, characters=characters)


def _gathered(
    distinct: EncodedBatch,
    *,
    lengths: Int64,
    order: Int64,
    per_text: Int64,
    characters: Int64,
) -> EncodedBatch:
    """Texts made of distinct parts.

    Args:
        distinct: tokens of M parts.
        lengths: int64 [M], characters of each part.
        order: int64 [P], the part at each place of all texts.
        per_text: int64 [N+1], where the places of each text begin.
        characters: int64 [N+1], where each text begins.
    """
    counts = np.diff(distinct.tokens)[order]
    begins = offsets_of(counts)
    chosen = np.arange(begins[-1], dtype=np.int64)
    chosen += np.repeat(distinct.tokens[:-1][order] - begins[:-1], counts)
    places = offsets_of(lengths[order])[:-1]
    moved = np.repeat(places - distinct.characters[:-1][order], counts)
    return EncodedBatch(
        ids=distinct.ids[chosen],
        starts=distinct.starts[chosen] + moved,
        ends=distinct.ends[chosen] + moved,
        tokens=begins[per_text],
        characters=characters,
    )


def _check(state: Mapping[str, Any], added: Sequence[Mapping[str, Any]]) -> None:
    if state.get("normalizer") is not None:
        raise EngineUnusableError("the tokenizer has a normalizer")
    if '"Metaspace"' in str(state.get("pre_tokenizer")).replace("'", '"'):
        raise EngineUnusableError("its pre-tokenizer looks at where a text begins (Metaspace)")
    if _adds_prefix_space(state.get("pre_tokenizer")):
        raise EngineUnusableError("its pre-tokenizer adds a space in front of texts")
    if state["model"].get("dropout"):
        raise EngineUnusableError("its model has dropout")
    for token in added:
        flags = [flag for flag in _FLAGS if token.get(flag)]
        if flags:
            raise EngineUnusableError(f"the added token {token['content']!r} has {flags[0]}")


def _adds_prefix_space(part: Any) -> bool:  # noqa: ANN401 - any JSON value
    if isinstance(part, Mapping):
        return bool(part.get("add_prefix_space")) or any(map(_adds_prefix_space, part.values()))
    return isinstance(part, list) and any(map(_adds_prefix_space, part))
