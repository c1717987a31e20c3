"""Column generation: how often each pattern of a row is used, as a linear program.

Minimise the rows, sum(x), such that patterns A hold every document, A x = demand. There are far
too many patterns to write down, so the revised simplex method asks a knapsack for those that would
improve the current answer, and ends when there are none (Gilmore and Gomory).

Arithmetic is elementwise, without BLAS, so every machine takes the same steps. The bound needs no
trust in floating point: it is computed from the last values in integers.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megapack.layout.runs import Int64
from megapack.packing.knapsack import best_patterns

Float64 = npt.NDArray[np.float64]

SCALE = 1 << 40
"""Values of lengths are integers in units of 1 / SCALE rows."""

TOLERANCE = 1e-9
"""A pattern must be worth this much more than a row to enter."""

COLUMNS_A_ROUND = 16
"""Patterns that one knapsack adds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FractionalPlan:
    """An answer of the linear program.

    Attributes:
        patterns: int64 [m, m], documents of each length in a row; pattern p is `patterns[p]`.
        rows: float64 [m], rows of each pattern, fractional.
        bound: rows that no plan can do without.
    """

    patterns: Int64
    rows: Float64
    bound: int


class _Simplex:
    """Basis of m patterns and its inverse."""

    def __init__(self, lengths: Int64, demand: Int64, capacity: int) -> None:
        most = capacity // lengths
        self.basis = np.diag(most).astype(np.int64)
        self.inverse = np.diag(1.0 / most)
        self.rows = demand / most
        self.pool = self.basis.copy()

    def values(self) -> Float64:
        """float64 [m]: rows that one more document of each length costs."""
        return self.inverse.sum(axis=0)

    def add(self, patterns: Int64) -> None:
        self.pool = np.concatenate([self.pool, patterns])

    def settle(self, pivots: int) -> int:
        """Pivot until no pattern of the pool improves; returns the pivots made."""
        pool = np.ascontiguousarray(self.pool.T).astype(np.float64)
        made = 0
        while made < pivots:
            worth = (pool * self.values()[:, None]).sum(axis=0)
            entering = int(worth.argmax())
            if worth[entering] <= 1 + TOLERANCE or not self._pivot(self.pool[entering]):
                break
            made += 1
        return made

    def _pivot(self, pattern: Int64) -> bool:
        """Let a pattern enter the basis; False when rounding leaves no pattern to replace."""
        column = (self.inverse * pattern[None, :]).T.sum(axis=0)
        usable = column > TOLERANCE
        if not usable.any():
            return False
        ratios = np.full(column.size, np.inf)
        ratios[usable] = self.rows[usable] / column[usable]
        leaving = int(ratios.argmin())
        step = max(float(ratios[leaving]), 0.0)
        self.inverse[leaving] /= column[leaving]
        others = column.copy()
        others[leaving] = 0.0
        self.inverse -= others[:, None] * self.inverse[leaving][None, :]
        self.rows -= step * column
        self.rows[leaving] = step
        self.basis[leaving] = pattern
        return True


def fractional_plan(
    lengths: Int64, demand: Int64, capacity: int, *, bound: int, rounds: int
) -> FractionalPlan | None:
    """Solve the linear program, to the point where whole rows cannot get fewer.

    Args:
        lengths: int64 [m], distinct, in [1, capacity].
        demand: int64 [m], documents of each length.
        capacity: row length.
        bound: rows known to be needed; a better one is found on the way.
        rounds: knapsacks that may be solved.

    Returns:
        The answer, or None when the rounds did not suffice.
    """
    simplex = _Simplex(lengths, demand, capacity)
    for _ in range(rounds):
        values = np.floor(np.clip(simplex.values(), 0.0, 2.0) * SCALE).astype(np.int64)
        patterns = best_patterns(values, lengths, capacity, most=COLUMNS_A_ROUND)
        best = int((patterns[0] * values).sum())
        worth = sum(v * d for v, d in zip(values.tolist(), demand.tolist(), strict=True))
        # Weak duality: with values scaled until no pattern is worth more than a row.
        bound = max(bound, -(-worth // max(best, 1)))
        settled = best <= SCALE * (1 + TOLERANCE)
        if settled or simplex.rows.sum() <= bound + TOLERANCE:
            return FractionalPlan(patterns=simplex.basis, rows=simplex.rows, bound=bound)
        simplex.add(patterns)
        if not simplex.settle(pivots=64 * lengths.size):
            return None
    return None
