"""What benchmarks work on: lengths of four kinds, and packed rows of real text.

All of it follows from a seed, the standard library of this Python and the tokenizer.
"""

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

_MEDIAN, _SIGMA, _LEAST = 600, 1.2, 8
_DISTINCT = 32
_LONG_SHARE = 0.1


class Lengths(StrEnum):
    """Kinds of distributions of document lengths."""

    LOGNORMAL = "lognormal"
    UNIFORM = "uniform"
    FEW = "few distinct"
    BIMODAL = "bimodal"


def draw_lengths(kind: Lengths, count: int, capacity: int, *, seed: int = 0) -> NDArray[np.int32]:
    """Lengths of documents, each at most `capacity`.

    Args:
        kind: log-normal with median 600 and sigma 1.2, clipped; uniform from 1; 32 distinct lengths
            with drawn weights; or nine tenths of 16 to 199 and a tenth of 0.9 capacity and more.
        count: how many.
        capacity: of a row, in tokens.
        seed: of the draw.
    """
    rng = np.random.Generator(np.random.Philox(seed))
    return _DRAW[kind](rng, count, capacity).astype(np.int32)


def _lognormal(rng: np.random.Generator, count: int, capacity: int) -> NDArray[np.float64]:
    return np.clip(rng.lognormal(np.log(_MEDIAN), _SIGMA, count), _LEAST, capacity)


def _uniform(rng: np.random.Generator, count: int, capacity: int) -> NDArray[np.int64]:
    return rng.integers(1, capacity + 1, count)


def _few(rng: np.random.Generator, count: int, capacity: int) -> NDArray[np.int64]:
    values = rng.integers(capacity // 50, capacity // 2, _DISTINCT)
    return rng.choice(values, count, p=rng.dirichlet(np.ones(_DISTINCT)))


def _bimodal(rng: np.random.Generator, count: int, capacity: int) -> NDArray[np.int64]:
    short = rng.integers(16, 200, count)
    long = rng.integers(int(0.9 * capacity), capacity + 1, count)
    return np.where(rng.random(count) < _LONG_SHARE, long, short)


_DRAW: dict[
    Lengths, Callable[[np.random.Generator, int, int], NDArray[np.float64] | NDArray[np.int64]]
] = {
    Lengths.LOGNORMAL: _lognormal,
    Lengths.UNIFORM: _uniform,
    Lengths.FEW: _few,
    Lengths.BIMODAL: _bimodal,
}


@dataclass(frozen=True, slots=True, eq=False)
class TokenRow:
    """A packed row in the plainest form, which every peer's format is written from.

    Attributes:
        tokens: int32 [row_length], documents one after the other, without padding.
        mask: uint8 [row_length], aligned with tokens: 1 where the token is supervised.
        lengths: int32 [documents], summing to row_length.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.uint8]
    lengths: NDArray[np.int32]


def token_rows(
    tokenizer: Tokenizer, *, rows: int, row_length: int, seed: int = 0
) -> list[TokenRow]:
    """Full rows of real text; documents have log-normal lengths, in turns of prompt and answer.

    Args:
        tokenizer: to make the ids with.
        rows: how many.
        row_length: tokens in each.
        seed: of lengths and turns.
    """
    rng = np.random.Generator(np.random.Philox(seed))
    ids = _library_ids(tokenizer, rows * row_length)
    made = []
    for start in range(0, rows * row_length, row_length):
        lengths = _lengths_summing_to(rng, row_length)
        masks = [_turns(rng, int(length)) for length in lengths]
        tokens = ids[start : start + row_length]
        made.append(TokenRow(tokens, np.concatenate(masks), lengths))
    return made


def library_texts() -> list[str]:
    """Sources of the standard library, tests and site-packages left out, in order of name."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    paths = sorted(p for p in folder.rglob("*.py") if not left_out & set(p.parts))
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths]


def _library_ids(tokenizer: Tokenizer, count: int) -> NDArray[np.int32]:
    """Ids of the library's texts, repeated when they do not suffice."""
    pieces: list[list[int]] = []
    have = 0
    for text in cycle(library_texts()):
        pieces.append(tokenizer.encode(text, add_special_tokens=False).ids)
        have += len(pieces[-1])
        if have >= count:
            break
    return np.concatenate([np.asarray(piece, np.int32) for piece in pieces])[:count]


def _lengths_summing_to(rng: np.random.Generator, total: int) -> NDArray[np.int32]:
    """Log-normal lengths, the last one cut so that they fill the row."""
    drawn = _lognormal(rng, 16 + total // 100, total).astype(np.int64)
    ends = np.minimum(np.cumsum(drawn), total)
    ends = np.append(ends[ends < total], total)
    return np.diff(ends, prepend=0).astype(np.int32)


def _turns(rng: np.random.Generator, length: int) -> NDArray[np.uint8]:
    """1 in the answers of a document whose turns are 20 to 400 tokens."""
    cuts = np.cumsum(rng.integers(20, 400, 1 + length // 20))
    return (np.searchsorted(cuts, np.arange(length), side="right") % 2).astype(np.uint8)
