"""Blends of several sources: how often each document is placed.

A blend decides for each source how much of it is wanted, and takes whole rounds of all its
documents and then documents in the order of a seeded hash of their ids until that is reached. So
the choice does not depend on the order of reading or on the other sources, and what a smaller
weight chooses is among what a larger one does. Weights are read as the decimals they are written
as, and all arithmetic is exact.

A source ends within half a document of its part when documents are counted, and as near as whole
documents come when tokens are: within half of its longest document.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from megapack.errors import ConfigError, ContractError, DataError
from megapack.layout.runs import Int64
from megapack.packing.config import BlendConfig, BlendTotal, BlendUnit
from megapack.packing.hash_order import IdHalves, halves_of, hash_order


def copies(
    document_ids: Sequence[str] | IdHalves,
    source_index: npt.ArrayLike,
    num_tokens: npt.ArrayLike,
    *,
    weights: Sequence[float],
    blend: BlendConfig,
    seed: int,
) -> Int64:
    """How often each document is placed.

    >>> ids = [f"{i:032x}" for i in range(6)]
    >>> blend = BlendConfig(unit="epochs")
    >>> counts = copies(ids, [0, 0, 0, 0, 1, 1], [9] * 6, weights=[0.5, 2], blend=blend, seed=0)
    >>> int(counts[:4].sum()), counts[4:].tolist()
    (2, [2, 2])

    Args:
        document_ids: M ids of 32 hex digits, or their halves.
        source_index: int [M], in [0, S).
        num_tokens: int [M], tokens of each document.
        weights: S weights, not negative; what they mean is the blend's unit.
        blend: unit, total, limit of repetition.
        seed: of the choice within a source.

    Returns:
        int64 [M]: 0 leaves a document out, 2 places it twice.

    Raises:
        ConfigError: weights are negative or all zero, or a source would be read more than
            `max_epochs` times.
        DataError: a source with a share of the result has no documents.
        ContractError: the arguments do not belong together.
    """
    sources = np.asarray(source_index, dtype=np.int64).reshape(-1)
    tokens = np.asarray(num_tokens, dtype=np.int64).reshape(-1)
    ids = halves_of(document_ids)
    _check_sizes(ids, sources, tokens, weights)
    exact = _exact(weights)
    sizes = np.ones_like(tokens) if blend.unit is not BlendUnit.TOKENS else tokens
    available = [int(sizes[sources == index].sum()) for index in range(len(weights))]
    epochs = _epochs(exact, available, blend)
    counts = np.zeros(sources.size, dtype=np.int64)
    for index, times in enumerate(epochs):
        own = np.flatnonzero(sources == index)
        rounds, part = divmod(times, 1)
        counts[own] = int(rounds)
        order = own[hash_order(IdHalves(ids.high[own], ids.low[own]), seed)]
        taken = _nearest(sizes[order], part * available[index])
        counts[order[:taken]] += 1
    return counts


def _epochs(
    weights: Sequence[Fraction], available: Sequence[int], blend: BlendConfig
) -> list[Fraction]:
    """How often each source is read."""
    if blend.total is None:
        return list(weights)
    whole = sum(weights)
    empty = [i for i, weight in enumerate(weights) if weight and not available[i]]
    if empty:
        raise DataError(
            f"blend: expected documents in every source with a weight, found none in sources "
            f"{empty} (counted from 0). Give them weight 0, or see what dropped their documents."
        )
    used = [i for i, weight in enumerate(weights) if weight]
    if blend.total is BlendTotal.FIRST_EXHAUSTED:
        total = min(available[i] * whole / weights[i] for i in used)
    elif blend.total is BlendTotal.LAST_EXHAUSTED:
        total = max(available[i] * whole / weights[i] for i in used)
    else:
        total = Fraction(int(blend.total))
    epochs = [
        total * weight / whole / most if weight else Fraction(0)
        for weight, most in zip(weights, available, strict=True)
    ]
    _check_repetition(epochs, blend)
    return epochs


def _nearest(sizes: Int64, wanted: Fraction) -> int:
    """Documents from the front whose sum is nearest to what is wanted; the fewer when equal."""
    reached = np.concatenate(([0], np.cumsum(sizes)))
    below = int(np.searchsorted(reached, int(wanted), side="right")) - 1
    if below + 1 == reached.size:
        return below
    short, over = wanted - int(reached[below]), int(reached[below + 1]) - wanted
    return below if short <= over else below + 1


def _exact(weights: Sequence[float]) -> list[Fraction]:
    if not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise ConfigError(
            f"blend: expected weights of 0 or more, one of them above 0, found {list(weights)}."
        )
    return [Fraction(str(weight)) for weight in weights]


def _check_repetition(epochs: Sequence[Fraction], blend: BlendConfig) -> None:
    often = {i: round(float(e), 2) for i, e in enumerate(epochs) if e > Fraction(blend.max_epochs)}
    if often:
        raise ConfigError(
            f"blend: expected no source to be read more than max_epochs = {blend.max_epochs:g} "
            f"times, found (source: times) {often}. Lower its weight, choose a smaller total "
            "(first_exhausted repeats nothing), or raise blend.max_epochs."
        )


def _check_sizes(ids: IdHalves, sources: Int64, tokens: Int64, weights: Sequence[float]) -> None:
    if not ids.high.size == sources.size == tokens.size:
        raise ContractError(
            f"copies: expected one id, source and token count a document, found "
            f"{ids.high.size}, {sources.size} and {tokens.size}."
        )
    if sources.size and not 0 <= int(sources.min()) <= int(sources.max()) < len(weights):
        raise ContractError(
            f"copies: expected source indices in [0, {len(weights)}), found "
            f"{int(sources.min())} to {int(sources.max())}."
        )
