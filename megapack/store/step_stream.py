"""The rows that one dp rank consumes, step after step, fetched ahead of time."""

from collections.abc import Iterator
from dataclasses import dataclass

from megapack.records.packed_row import PackedRow
from megapack.store.manifest import Split
from megapack.store.order import Int64, RowOrder, StepPlan
from megapack.store.reader import PackedDataset


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
    """

    plan: StepPlan
    rows: tuple[PackedRow, ...]


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
        ConfigError: dp does not divide the global batch, or the split has no rows.
        StoreError: the store failed.
        DataError: a part or a row is damaged.
    """
    order = dataset.order(split, seed=seed)
    costs = dataset.costs(split)
    current = _plan(order, costs, consumed_rows, global_batch_rows, dp)
    while True:
        following = _plan(order, costs, current[0].next_consumed, global_batch_rows, dp)
        rows = tuple(dataset.rows(split, current[1]))
        dataset.prefetch(split, following[1][:1])
        yield RankStep(plan=current[0], rows=rows)
        current = following


def _plan(
    order: RowOrder, costs: Int64, consumed: int, global_batch_rows: int, dp: DpSlice
) -> tuple[StepPlan, Int64]:
    plan = order.step(consumed=consumed, global_batch_rows=global_batch_rows)
    mine = plan.rank_rows(dp_rank=dp.rank, dp_size=dp.size, costs=costs[plan.rows])
    return plan, mine
