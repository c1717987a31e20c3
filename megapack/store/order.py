"""The seeded order over the rows of a split, from which the rows of each step are dealt.

The order is the endless concatenation of one shuffle per epoch. A shuffle permutes row groups and
then the rows inside each group, so that a reader touches one group after another; the stored order
is already a seeded shuffle, so this costs no randomness that matters. Every shuffle comes from a
generator of its own, made from seed, epoch and group: ambient random state is neither read nor
changed, and any position is found without walking there.

State is one number, the rows consumed. Which dp rank takes which row of a step does not change
the step: a run resumed with another dp sees the same steps. `balance` decides which rows are a
step.
"""

from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from megapack.errors import ConfigError
from megapack.store.spread import spread

Int64 = npt.NDArray[np.int64]

_GROUPS_STREAM = 0
_ROWS_STREAM = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPlan:
    """Rows of one step over all dp ranks.

    Attributes:
        first_consumed: rows consumed before the step, over all epochs.
        rows: int64 [G], row numbers inside the split, in consumption order.
    """

    first_consumed: int
    rows: Int64

    @property
    def next_consumed(self) -> int:
        """Rows consumed after the step: the resume point."""
        return self.first_consumed + int(self.rows.size)

    def rank_rows(self, *, dp_rank: int, dp_size: int, costs: npt.ArrayLike | None = None) -> Int64:
        """Rows that one dp rank takes: the same number on each, in consumption order.

        Args:
            dp_rank: this rank.
            dp_size: ranks that share the step.
            costs: int64 [G], attention cost of each of `rows`; with it the costly rows are spread,
                without it each rank takes a consecutive stretch.

        Returns:
            int64 [G / dp_size].

        Raises:
            ConfigError: the rank is out of range, or dp_size does not divide G.
        """
        total = int(self.rows.size)
        if not 0 <= dp_rank < dp_size or total % dp_size:
            raise ConfigError(
                f"StepPlan: expected 0 <= dp_rank < dp_size and a global batch that dp_size "
                f"divides; found dp_rank {dp_rank}, dp_size {dp_size}, {total} rows."
            )
        share = total // dp_size
        if costs is None:
            return self.rows[dp_rank * share : (dp_rank + 1) * share]
        owner = spread(np.asarray(costs, dtype=np.int64), dp_size)
        mine: Int64 = self.rows[owner == dp_rank]
        return mine


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder:
    """Endless seeded order over the rows of a split.

    Attributes:
        group_sizes: rows of each row group, in stored order; empty groups are allowed.
        seed: seed of the order.
    """

    group_sizes: tuple[int, ...]
    seed: int
    _starts: Int64 = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if sum(self.group_sizes) < 1:
            raise ConfigError("RowOrder: expected at least one row, found an empty split.")
        starts = np.array([0, *accumulate(self.group_sizes)], dtype=np.int64)
        object.__setattr__(self, "_starts", starts)

    @property
    def num_rows(self) -> int:
        """Rows of one epoch."""
        return int(self._starts[-1])

    def rows_at(self, consumed: int, count: int) -> Int64:
        """Rows number `consumed` to `consumed + count` of the endless order.

        Returns:
            int64 [count], row numbers inside the split.
        """
        pieces: list[Int64] = []
        while count > 0:
            epoch, offset = divmod(consumed, self.num_rows)
            taken = min(count, self.num_rows - offset)
            pieces.append(self.epoch_rows(epoch, offset, taken))
            consumed, count = consumed + taken, count - taken
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    def epoch_rows(self, epoch: int, offset: int, count: int) -> Int64:
        """int64 [count]: rows of one epoch's shuffle from an offset, inside the epoch."""
        groups = self.generator(epoch, _GROUPS_STREAM).permutation(len(self.group_sizes))
        ends = np.cumsum(np.diff(self._starts)[groups])
        first = int(np.searchsorted(ends, offset, side="right"))
        last = int(np.searchsorted(ends, offset + count, side="left"))
        taken = np.concatenate([self._group_rows(epoch, int(g)) for g in groups[first : last + 1]])
        skipped = offset - (int(ends[first - 1]) if first else 0)
        return taken[skipped : skipped + count]

    def _group_rows(self, epoch: int, group: int) -> Int64:
        size = self.group_sizes[group]
        inside = self.generator(epoch, _ROWS_STREAM, group).permutation(size)
        rows: Int64 = inside.astype(np.int64) + self._starts[group]
        return rows

    def generator(self, epoch: int, *stream: int) -> np.random.Generator:
        """A generator of its own for each stream of an epoch."""
        entropy = np.random.SeedSequence((self.seed, epoch, *stream))
        return np.random.Generator(np.random.Philox(entropy))
