"""Lengths to pack: the distributions that planners are compared on."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


class Problem(NamedTuple):
    """Lengths of one kind.

    Attributes:
        kind: `lognormal` (median 600, sigma 1.2), `uniform` (1 to capacity), `few` (32 distinct
            lengths) or `two_humps` (90% of 16 to 199, 10% above nine tenths of the capacity).
        count: documents.
        capacity: row length.
        seed: of the lengths.
    """

    kind: str
    count: int
    capacity: int
    seed: int = 0

    @property
    def name(self) -> str:
        """As the table shows it."""
        count = f"{self.count // 1_000_000}M" if self.count >= 1_000_000 else str(self.count)
        return f"{self.kind} n={count} cap={self.capacity} seed={self.seed}"

    def lengths(self) -> Int32:
        """int32 [count], in [1, capacity]."""
        rng = np.random.default_rng(self.seed)
        count, capacity = self.count, self.capacity
        if self.kind == "lognormal":
            drawn = np.exp(rng.normal(np.log(600), 1.2, count)).clip(8)
        elif self.kind == "uniform":
            drawn = rng.integers(1, capacity + 1, count)
        elif self.kind == "few":
            values = rng.integers(capacity // 50, capacity // 2, 32)
            drawn = rng.choice(values, count, p=rng.dirichlet(np.ones(32)))
        else:
            short = rng.random(count) < 0.9
            high = rng.integers(int(0.9 * capacity), capacity + 1, count)
            drawn = np.where(short, rng.integers(16, 200, count), high)
        return np.clip(drawn, 1, capacity).astype(np.int32)
