"""The rows that one dp rank consumes, step after step, fetched ahead of time.

Row groups of the next steps are fetched in the background while a step runs; the state is what was
consumed, whatever was fetched.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from megapack.records.packed_row import PackedRow
from megapack.store.balance import BalancedSteps
from megapack.store.manifest import Split
from megapack.store.order import Int64, StepPlan
from megapack.store.reader import PackedDataset

STEPS_AHEAD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSlice:
    """Which part of each step a rank takes; `rank` in [0, size)."""

    rank: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankStep:
    """One step as one dp rank sees it.

    Attributes:
        plan: rows of the step over all ranks.
        rows: this rank's rows, in consumption order.
        numbers: int64 [rows], their numbers inside the split.
    """

    plan: StepPlan
    rows: tuple[PackedRow, ...]
    numbers: Int64


def rank_steps(
    dataset: PackedDataset,
    *,
    split: Split,
    seed: int,
    global_batch_rows: int,
    dp: DpSlice,
    consumed_rows: int = 0,
) -> Iterator[RankStep]:
    """Endless steps of one dp rank, from a resume point.

    Args:
        dataset: where rows come from.
        split: side of the split.
        seed: seed of the order.
        global_batch_rows: rows of a step over all dp ranks.
        dp: this rank.
        consumed_rows: rows consumed so far over all ranks and epochs: the whole resume state.
            `RankStep.plan.next_consumed` is its value after the step.

    Yields:
        Steps; the costly rows of each are spread evenly over the ranks.

    Raises:
        ConfigError: dp does not divide the global batch, the split has no rows, or no step begins
            after `consumed_rows`.
        StoreError: the store failed.
        DataError: a part or a row is damaged.
    """
    costs = dataset.costs(split)
    steps = BalancedSteps(
        dataset.order(split, seed=seed), costs, global_batch_rows=global_batch_rows
    )
    upcoming: deque[tuple[StepPlan, Int64]] = deque()
    while True:
        while len(upcoming) <= STEPS_AHEAD:
            plan = steps.step(upcoming[-1][0].next_consumed if upcoming else consumed_rows)
            mine = plan.rank_rows(dp_rank=dp.rank, dp_size=dp.size, costs=costs[plan.rows])
            upcoming.append((plan, mine))
        dataset.prefetch(split, np.concatenate([mine for _, mine in upcoming]))
        plan, mine = upcoming.popleft()
        consumed_rows = plan.next_consumed
        yield RankStep(plan=plan, rows=tuple(dataset.rows(split, mine)), numbers=mine)
