import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ConfigError, ContractError
from megapack.packing.planner import plan_rows
from megapack.store.balance import BalancedSteps, window_steps
from megapack.store.order import RowOrder
from megapack.store.row_frames import attention_cost
from megapack.store.spread import spread

_SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)


def _steps(sizes, seed, batch, *, costs=None):
    order = RowOrder(group_sizes=tuple(sizes), seed=seed)
    if costs is None:
        costs = np.random.default_rng(seed).integers(1, 10**9, order.num_rows)
    return BalancedSteps(order, costs, global_batch_rows=batch), order, costs


@settings(deadline=None, max_examples=60)
@given(_SIZES, st.integers(0, 2**40), st.integers(1, 9), st.integers(1, 4))
def test_every_row_is_taken_once_an_epoch(sizes, seed, batch, epochs):
    steps, order, _ = _steps(sizes, seed, batch)
    total = order.num_rows * epochs
    stream = [steps.step(at).rows.tolist() for at in range(0, total, batch)]
    assert {len(rows) for rows in stream} == {batch}
    flat = list(itertools.chain.from_iterable(stream))
    for epoch in range(epochs):
        taken = flat[epoch * order.num_rows : (epoch + 1) * order.num_rows]
        # A step over the epoch's end holds rows of both epochs, the older ones first.
        assert sorted(taken) == list(range(order.num_rows))


@settings(deadline=None, max_examples=60)
@given(_SIZES, st.integers(0, 2**40), st.integers(1, 9), st.data())
def test_a_step_is_found_without_walking_there(sizes, seed, batch, data):
    walked, order, costs = _steps(sizes, seed, batch)
    count = 3 * order.num_rows // batch + 2
    stream = [walked.step(at * batch) for at in range(count)]
    number = data.draw(st.integers(0, count - 1))
    fresh, _, _ = _steps(sizes, seed, batch, costs=costs)
    assert fresh.step(number * batch).rows.tolist() == stream[number].rows.tolist()
    assert stream[number].next_consumed == (number + 1) * batch


def test_a_window_holds_the_rows_of_one_stretch_sorted_into_steps_of_like_cost():
    batch = 4
    whole = window_steps(batch)
    rows = 2 * whole * batch + 3 * batch  # two windows, and one of three steps
    steps, order, costs = _steps([64] * 8 + [rows - 512], 5, batch)
    for window, count in enumerate((whole, whole, 3)):
        first = window * whole * batch
        plans = [steps.step(first + at * batch).rows for at in range(count)]
        stretch = order.rows_at(first, count * batch)
        assert sorted(np.concatenate(plans)) == sorted(stretch)
        ranges = sorted((costs[rows].min(), costs[rows].max()) for rows in plans)
        assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ranges))
        assert count == 3 or ranges != [(costs[rows].min(), costs[rows].max()) for rows in plans]


def test_the_step_over_an_epochs_end_takes_cheap_rows_of_both_windows():
    steps, order, costs = _steps([10], 0, 4)
    rows = steps.step(8).rows
    assert sorted(costs[rows[:2]]) == sorted(costs)[:2]
    assert sorted(costs[rows[2:]]) == sorted(costs)[:2]
    assert order.num_rows == 10


def test_steps_literal():
    steps, _, _ = _steps([4, 3, 2], 7, 4, costs=np.array([9, 1, 8, 2, 7, 3, 6, 4, 5]))
    found = [steps.step(at).rows.tolist() for at in range(0, 20, 4)]
    assert found == GOLDEN


GOLDEN = [[4, 6, 0, 2], [5, 3, 7, 8], [1, 5, 3, 1], [4, 6, 2, 0], [8, 7, 1, 3]]


def test_resume_inside_a_step_or_without_rows_is_refused():
    steps, order, costs = _steps([10], 0, 4)
    with pytest.raises(ConfigError, match="global batch of 4 rows, found 6 consumed rows"):
        steps.step(6)
    with pytest.raises(ConfigError, match="global batch of at least 1, found 0"):
        BalancedSteps(order, costs, global_batch_rows=0)
    with pytest.raises(ContractError, match="expected 10 costs, found 9"):
        BalancedSteps(order, costs[1:], global_batch_rows=4)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.lists(st.integers(0, 2**62 // 100), min_size=1, max_size=12))
def test_spread_gives_equal_counts_and_loads_within_one_row(dp_size, costs):
    costs = np.array(costs * dp_size, dtype=np.int64)
    owner = spread(costs, dp_size)
    assert np.bincount(owner, minlength=dp_size).tolist() == [costs.size // dp_size] * dp_size
    loads = [int(costs[owner == rank].sum()) for rank in range(dp_size)]
    assert max(loads) - min(loads) <= int(costs.max())


def test_spread_literal():
    assert spread(np.array([9, 8, 1, 2]), 2).tolist() == [0, 1, 0, 1]
    assert spread(np.array([5, 5, 5, 5, 1, 1]), 2).tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(("capacity", "limit"), [(32_768, 1.05), (131_072, 1.10)])
def test_ranks_wait_little_for_one_another_on_log_normal_packs(capacity, limit):
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(np.log(600), 1.2, 400_000), 1, capacity).astype(np.int64)
    plan = plan_rows(lengths, capacity)
    costs = np.array([attention_cost(lengths[plan.row(i)]) for i in range(plan.num_rows)])
    costs = costs[draw.permutation(costs.size)]
    batch = 64
    steps, _, _ = _steps([32] * (costs.size // 32), 1, batch, costs=costs[: costs.size // 32 * 32])
    count = costs.size // batch
    loads = np.array([costs[steps.step(at * batch).rows] for at in range(count)], dtype=np.float64)
    waiting = (loads.max(axis=1) / loads.mean(axis=1)).mean()
    random = costs[: count * batch].reshape(-1, batch)
    assert waiting <= limit
    assert (random.max(axis=1) / random.mean(axis=1)).mean() > 5
