import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ContractError
from megapack.packing.bounds import lower_bound
from megapack.packing.loops import Backend
from megapack.packing.planner import best_fit_decreasing, plan_rows, shuffled
from tests.support import packing_problems as problems
from tests.support.packing_problems import check_plan, rows_of, same_plan


@st.composite
def small_problems(draw):
    capacity = draw(st.integers(1, 64))
    return draw(st.lists(st.integers(1, capacity), max_size=60)), capacity


@given(small_problems())
def test_best_fit_decreasing_equals_the_loop_over_documents(problem):
    lengths, capacity = problem
    plan = best_fit_decreasing(lengths, capacity)
    spaces = [capacity - sum(lengths[d] for d in row) for row in rows_of(plan)]
    assert sorted(spaces) == problems.best_fit_decreasing(lengths, capacity)
    check_plan(plan, lengths, capacity)


@given(small_problems())
def test_best_fit_decreasing_gives_out_equal_documents_in_input_order(problem):
    lengths, capacity = problem
    plan = best_fit_decreasing(lengths, capacity)
    for length in set(lengths):
        own = [d for d in plan.document.tolist() if lengths[d] == length]
        assert own == sorted(own)
    for row in rows_of(plan):
        assert [lengths[d] for d in row] == sorted((lengths[d] for d in row), reverse=True)


@pytest.mark.parametrize("capacity", [4096, 70_000, 1_100_000])
@pytest.mark.parametrize("kind", problems.DISTRIBUTIONS)
def test_best_fit_decreasing_equals_the_loop_on_real_distributions(kind, capacity):
    lengths = problems.lengths_of(kind, 600, capacity)
    plan = best_fit_decreasing(lengths, capacity)
    check_plan(plan, lengths, capacity)
    filled = np.add.reduceat(lengths[plan.document].astype(np.int64), plan.offsets[:-1])
    expected = problems.best_fit_decreasing(lengths.tolist(), capacity)
    assert sorted((capacity - filled).tolist()) == expected


@given(small_problems())
def test_plan_rows_never_has_more_rows_than_best_fit_decreasing(problem):
    lengths, capacity = problem
    plan = plan_rows(lengths, capacity)
    check_plan(plan, lengths, capacity)
    assert plan.num_rows <= best_fit_decreasing(lengths, capacity).num_rows


@given(st.lists(st.integers(1, 12), max_size=9))
@settings(deadline=None)
def test_lower_bound_is_below_the_optimum(lengths):
    counts = np.bincount(np.array(lengths, dtype=np.int64), minlength=13)
    assert lower_bound(counts, 12) <= problems.fewest_rows(lengths, 12)


@pytest.mark.parametrize("kind", ["lognormal", "uniform"])
def test_plan_rows_is_within_a_twentieth_of_a_percent_of_the_bound(kind):
    lengths = problems.lengths_of(kind, 100_000, 32768)
    bound = lower_bound(np.bincount(lengths), 32768)
    assert bound <= plan_rows(lengths, 32768).num_rows <= bound * 1.0005


def test_plan_rows_takes_a_document_of_exactly_the_capacity_and_keeps_the_short_tail():
    # Slots of documents of 7, C, C + 1 and 1 tokens: the last label of C + 1 needs no position.
    assert rows_of(plan_rows([7, 16, 16, 1], 16)) == [[1], [2], [0, 3]]


@given(small_problems(), st.integers(0, 2**32))
def test_shuffled_keeps_rows_whole(problem, seed):
    lengths, capacity = problem
    plan = plan_rows(lengths, capacity)
    assert sorted(rows_of(shuffled(plan, seed))) == sorted(rows_of(plan))


def test_plan_and_order_ignore_ambient_random_state():
    lengths = [3, 5, 2, 6, 1, 1, 4, 8]
    np.random.seed(1)  # noqa: NPY002 - the ambient state is what is tested
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    first = shuffled(plan_rows(lengths, 8), 3)
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002
    np.random.rand(5)  # noqa: NPY002
    assert same_plan(shuffled(plan_rows(lengths, 8), 3), first)


def test_plan_is_the_same_from_one_and_from_eight_workers():
    lengths = problems.lengths_of("few", 5000, 4096)
    alone = shuffled(plan_rows(lengths, 4096), 7)
    with ThreadPoolExecutor(8) as workers:
        plans = workers.map(lambda _: shuffled(plan_rows(lengths, 4096), 7), range(8))
    assert all(same_plan(plan, alone) for plan in plans)


def test_shuffled_depends_on_seed():
    plan = plan_rows([8] * 50, 8)
    assert shuffled(plan, 0).document.tolist() != shuffled(plan, 1).document.tolist()


@pytest.mark.parametrize("lengths", [[1, 9], [0, 3]])
def test_plan_rows_refuses_length_out_of_range(lengths):
    with pytest.raises(ContractError, match="expected 1 to capacity = 8"):
        plan_rows(lengths, 8)


def test_plan_rows_refuses_lengths_that_are_not_integers():
    with pytest.raises(ContractError, match="expected integer slot lengths, found float64"):
        plan_rows([1.5, 2.0], 8)


@pytest.mark.parametrize("backend", list(Backend))
def test_plan_rows_empty_is_no_rows(backend):
    assert plan_rows([], 8, backend=backend).num_rows == 0


def test_small_plans_do_not_load_numba():
    code = (
        "import sys; from megapack.packing.planner import plan_rows; plan_rows([1, 2, 3] * 9, 8); "
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
