"""Attention cost over 64 dp ranks: what the costliest rank does over what a rank does on average.

Log-normal documents are packed, and the reader's own plan of steps deals the rows. The figure is
the mean over the steps of an epoch; the share of a run that ranks spend waiting, in which costly
steps weigh more, and the worst step are kept beside it.
"""

import numpy as np
from numpy.typing import NDArray

from benchmarks.inputs import Lengths, draw_lengths
from benchmarks.record import at_most, emit
from megapack.packing.planner import plan_rows
from megapack.store.balance import BalancedSteps
from megapack.store.order import RowOrder
from megapack.store.spread import spread

_DOCUMENTS, _RANKS = 1_000_000, 64
_LIMITS = {32_768: 1.05, 131_072: 1.10}
_GROUP_TOKENS = 1 << 20


def main() -> None:
    """Print a goal line for each row length, one row a rank; more rows a rank as information."""
    for capacity, limit in _LIMITS.items():
        costs = _row_costs(capacity)
        for share in (1, 2, 4):
            loads = _loads(costs, capacity=capacity, batch=share * _RANKS)
            ratios = loads.max(axis=1) / loads.mean(axis=1)
            plain = costs[: loads.shape[0] * share * _RANKS].reshape(-1, _RANKS, share).sum(axis=2)
            details = {
                "rows_a_rank": share,
                "rows": costs.size,
                "steps": loads.shape[0],
                "worst_step": round(float(ratios.max()), 3),
                "all_steps": round(float(loads.max(axis=1).sum() / loads.mean(axis=1).sum()), 3),
                "seeded_order": round(float((plain.max(axis=1) / plain.mean(axis=1)).mean()), 2),
            }
            what = f"max/mean a step, {capacity} tokens a row"
            if share == 1:
                at_most("P5", what, float(ratios.mean()), limit, **details)
            else:
                emit("balance", what=what, measured=round(float(ratios.mean()), 4), **details)


def _row_costs(capacity: int) -> NDArray[np.int64]:
    """int64 [rows]: attention cost of each row, in a shuffled stored order."""
    lengths = draw_lengths(Lengths.LOGNORMAL, _DOCUMENTS, capacity).astype(np.int64)
    plan = plan_rows(lengths, capacity)
    pairs = lengths * (lengths + 1) // 2
    costs = np.add.reduceat(pairs[plan.document], plan.offsets[:-1])
    return costs[np.random.Generator(np.random.Philox(1)).permutation(costs.size)]


def _loads(costs: NDArray[np.int64], *, capacity: int, batch: int) -> NDArray[np.float64]:
    """float64 [steps, ranks] of one epoch."""
    group = max(1, _GROUP_TOKENS // capacity)
    whole, rest = divmod(costs.size, group)
    order = RowOrder(group_sizes=(group,) * whole + (rest,) * (rest > 0), seed=1)
    steps = BalancedSteps(order, costs, global_batch_rows=batch)
    loads = []
    for number in range(costs.size // batch):
        step = costs[steps.step(number * batch).rows]
        owner = spread(step, _RANKS)
        loads.append(np.bincount(owner, weights=step.astype(np.float64), minlength=_RANKS))
    return np.array(loads)


if __name__ == "__main__":
    main()
