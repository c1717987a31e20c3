"""Steps whose rows cost alike: what keeps dp ranks from waiting for one another.

Within a window of about 8,192 rows the rows are sorted by attention cost and cut into steps, and
the steps are shuffled. A rank then waits for rows that cost nearly what its own do. Over dp ranks
the rows of a step are spread costliest first, each to the rank with the least load, at equal
counts. On log-normal packs over 64 ranks, one row a rank, the costliest rank has 1.03 times the
mean load at 32k and 1.05 times at 131k (random order: 6.0 and 8.7); with four rows a rank 1.004
and 1.03. What is left is the costliest step of each window, whose rows differ most.

Which rows a step takes is a function of (seed, epoch, step, global batch) alone, never of dp. A
window never crosses an epoch: each row is taken once an epoch. Where the global batch does not
divide an epoch, one step takes rows of two epochs; these are the cheapest of the windows at either
side, so that they cost alike too.

Cost of reading: a window's rows come from one stretch of the seeded order, so that whole row
groups belong to it, but a step's rows may each lie in another group. A rank reads and decodes, at
worst, one row group (a million tokens: 1 MB from the store, 6 ms of a core) for each row, in the
background; a window whose groups fit the reader's memory is read once.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from megapack.errors import ConfigError, ContractError
from megapack.store.order import Int64, RowOrder, StepPlan

WINDOW_ROWS = 8192
FEWEST_STEPS, MOST_STEPS = 16, 128
_STEPS_STREAM = 2
_KEPT_WINDOWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epoch:
    """How the steps lie over one epoch, in rows from its begin.

    Attributes:
        head: rows that complete a step begun in an epoch before.
        whole: rows of the steps that lie in this epoch alone.
        rows: all rows; the rest after `head` and `whole` begins the next epoch's first step.
    """

    head: int
    whole: int
    rows: int

    @classmethod
    def of(cls, epoch: int, *, rows: int, batch: int) -> "_Epoch":
        """Epoch number `epoch`."""
        head = min(rows, -epoch * rows % batch)
        return cls(head=head, whole=(rows - head) // batch * batch, rows=rows)

    def window(self, offset: int, span: int) -> int:
        """Number of the window that consumption offset `offset` lies in."""
        last = max(0, -(-self.whole // span) - 1)
        return min(last, max(0, offset - self.head) // span)

    def bounds(self, window: int, span: int) -> tuple[int, int]:
        """Offsets at which a window begins and ends; head and tail belong to the outer ones."""
        begin = self.head + window * span if window else 0
        end = self.head + (window + 1) * span
        return begin, end if end < self.head + self.whole else self.rows


def window_steps(global_batch_rows: int) -> int:
    """Steps of a window.

    >>> [window_steps(rows) for rows in (4, 64, 256, 4096)]
    [128, 128, 32, 16]
    """
    return max(FEWEST_STEPS, min(MOST_STEPS, WINDOW_ROWS // global_batch_rows))


class BalancedSteps:
    """The endless steps over a split; each is found without walking there."""

    def __init__(self, order: RowOrder, costs: Int64, *, global_batch_rows: int) -> None:
        """Plan over an order.

        Args:
            order: the seeded order that windows are cut from.
            costs: int64 [rows of the split], attention cost of each row.
            global_batch_rows: G, rows of a step over all dp ranks.

        Raises:
            ConfigError: G is below 1.
            ContractError: there is not one cost a row.
        """
        if global_batch_rows < 1:
            raise ConfigError(f"expected a global batch of at least 1, found {global_batch_rows}.")
        if costs.size != order.num_rows:
            raise ContractError(f"expected {order.num_rows} costs, found {costs.size}.")
        self._order = order
        self._costs = costs
        self._batch = global_batch_rows
        self._span = window_steps(global_batch_rows) * global_batch_rows
        self._windows: OrderedDict[tuple[int, int], Int64] = OrderedDict()

    def step(self, consumed: int) -> StepPlan:
        """The step that begins after `consumed` rows.

        Raises:
            ConfigError: no step begins there.
        """
        if consumed < 0 or consumed % self._batch:
            raise ConfigError(
                f"expected a resume point at the begin of a step, a multiple of the global batch "
                f"of {self._batch} rows, found {consumed} consumed rows. Resume with the global "
                "batch that the run began with."
            )
        pieces, at, left = [], consumed, self._batch
        while left:
            epoch, offset = divmod(at, self._order.num_rows)
            piece = self._rows(epoch, offset, left)
            pieces.append(piece)
            at, left = at + piece.size, left - piece.size
        return StepPlan(first_consumed=consumed, rows=np.concatenate(pieces))

    def _rows(self, epoch: int, offset: int, most: int) -> Int64:
        """Up to `most` rows from an offset into an epoch, as far as its window goes."""
        shape = _Epoch.of(epoch, rows=self._order.num_rows, batch=self._batch)
        window = shape.window(offset, self._span)
        if (epoch, window) not in self._windows:
            self._windows[epoch, window] = self._deal(epoch, window, shape)
            while len(self._windows) > _KEPT_WINDOWS:
                self._windows.popitem(last=False)
        self._windows.move_to_end((epoch, window))
        first = offset - shape.bounds(window, self._span)[0]
        return self._windows[epoch, window][first : first + most]

    def _deal(self, epoch: int, window: int, shape: _Epoch) -> Int64:
        """int64: rows of a window in the order in which steps consume them."""
        begin, end = shape.bounds(window, self._span)
        rows = self._order.epoch_rows(epoch, begin, end - begin)
        by_cost = np.argsort(self._costs[rows], kind="stable")
        head = shape.head - begin if begin < shape.head else 0
        tail = end - max(begin, shape.head + shape.whole) if end == shape.rows else 0
        steps = by_cost[head + tail :].reshape(-1, self._batch)
        shuffled = steps[
            self._order.generator(epoch, _STEPS_STREAM, window).permutation(len(steps))
        ]
        # Rows of a step in the seeded order again, so that equal groups follow one another.
        dealt = np.concatenate(
            [
                np.sort(by_cost[:head]),
                np.sort(shuffled, axis=1).reshape(-1),
                np.sort(by_cost[head : head + tail]),
            ]
        )
        in_order: Int64 = rows[dealt]
        return in_order
