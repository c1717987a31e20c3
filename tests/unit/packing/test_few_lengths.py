import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.packing import few_lengths
from megapack.packing.bounds import lower_bound
from megapack.packing.columns import fractional_plan
from megapack.packing.knapsack import best_patterns
from megapack.packing.planner import best_fit_decreasing, plan_rows
from tests.support import packing_problems as problems
from tests.support.packing_problems import check_plan, same_plan


def counted(lengths):
    values, counts = np.unique(np.asarray(lengths, dtype=np.int64), return_counts=True)
    return values, counts.astype(np.int64)


def answer_of(lengths, capacity):
    values, counts = counted(lengths)
    bound = lower_bound(np.bincount(lengths), capacity)
    return fractional_plan(values, counts, capacity, bound=bound, rounds=400)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6),
    st.integers(9, 30),
)
def test_best_pattern_is_worth_what_the_knapsack_loop_finds(items, capacity):
    lengths = np.array([length for length, _ in items])
    values = np.array([value for _, value in items])
    best = [0] * (capacity + 1)
    for space in range(1, capacity + 1):
        taken = [best[space - n] + v for n, v in items if n <= space]
        best[space] = max([best[space - 1], *taken])
    patterns = best_patterns(values, lengths, capacity, most=4)
    assert (patterns @ lengths <= capacity).all()
    assert (patterns >= 0).all()
    assert int((patterns[0] * values).sum()) == best[capacity]
    assert len({tuple(p) for p in patterns.tolist()}) == len(patterns) <= 4


@pytest.mark.parametrize(
    ("seed", "bound", "best_fit"), [(0, 25976, 26670), (1, 29612, 30463), (2, 24048, 24309)]
)
def test_few_lengths_take_at_most_two_rows_over_the_linear_bound(seed, bound, best_fit):
    # The bounds were found with another solver.
    lengths = problems.lengths_of("few", 100_000, 32768, seed)
    assert answer_of(lengths, 32768).bound == bound
    assert best_fit_decreasing(lengths, 32768).num_rows == best_fit
    plan = plan_rows(lengths, 32768)
    check_plan(plan, lengths, 32768)
    assert bound <= plan.num_rows <= bound + 2


@given(st.data(), st.sampled_from([60, 100]))
@settings(deadline=None, max_examples=60)
def test_few_lengths_take_at_most_two_rows_over_the_bound(data, capacity):
    values = data.draw(st.lists(st.integers(5, capacity), min_size=1, max_size=8, unique=True))
    lengths = [
        value for value in values for _ in range(data.draw(st.integers(1, 400), label="count"))
    ]
    plan = plan_rows(lengths, capacity)
    check_plan(plan, lengths, capacity)
    assert plan.num_rows <= answer_of(lengths, capacity).bound + 2


@given(st.lists(st.integers(1, 12), min_size=1, max_size=9))
@settings(deadline=None)
def test_bound_of_the_linear_program_is_below_the_optimum(lengths):
    values, counts = counted(lengths)
    answer = fractional_plan(values, counts, 12, bound=0, rounds=400)
    assert answer.bound <= problems.fewest_rows(lengths, 12)
    assert np.allclose(answer.rows @ answer.patterns, counts)
    assert (answer.patterns @ values <= 12).all()


def test_rows_saved_where_best_fit_decreasing_pairs_the_longest():
    # One of each fills a row; best fit puts two of 6 together and leaves 3 positions.
    lengths = [4] * 60 + [5] * 60 + [6] * 60
    assert best_fit_decreasing(lengths, 15).num_rows == 70
    assert plan_rows(lengths, 15).num_rows == 60


def test_work_limit_falls_back_to_best_fit_decreasing(monkeypatch):
    lengths = problems.lengths_of("few", 20_000, 32768)
    monkeypatch.setattr(few_lengths, "MOST_ROUNDS", 1)
    plan = plan_rows(lengths, 32768)
    assert same_plan(plan, best_fit_decreasing(lengths, 32768))


def test_many_lengths_are_left_to_best_fit_decreasing(monkeypatch):
    monkeypatch.setattr(few_lengths, "fractional_plan", None)
    lengths = problems.lengths_of("uniform", 2000, 32768)
    assert same_plan(plan_rows(lengths, 32768), best_fit_decreasing(lengths, 32768))


@pytest.mark.parametrize("granule", [1, 16])
def test_granules_change_nothing_but_the_unit(granule):
    lengths = problems.lengths_of("few", 5000, 2048)
    coarse = plan_rows(lengths * granule, 2048 * granule)
    assert same_plan(coarse, plan_rows(lengths, 2048))
