import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megapack.errors import ContractError
from megapack.packing.planner import plan_rows, shuffled


@st.composite
def problems(draw):
    capacity = draw(st.integers(1, 64))
    return draw(st.lists(st.integers(1, capacity), max_size=60)), capacity


def best_fit_decreasing(lengths, capacity):
    """The textbook loop: remaining space of each row, sorted."""
    rows = []
    for length in sorted(lengths, reverse=True):
        fitting = [r for r, space in enumerate(rows) if space >= length]
        if fitting:
            rows[min(fitting, key=lambda r: rows[r])] -= length
        else:
            rows.append(capacity - length)
    return sorted(rows)


@given(problems())
def test_plan_rows_equals_best_fit_decreasing_loop(problem):
    lengths, capacity = problem
    plan = plan_rows(lengths, capacity)
    spaces = [capacity - sum(lengths[d] for d in plan.row(r)) for r in range(plan.num_rows)]
    assert sorted(spaces) == best_fit_decreasing(lengths, capacity)


@given(problems())
def test_plan_rows_places_every_document_once(problem):
    lengths, capacity = problem
    plan = plan_rows(lengths, capacity)
    assert sorted(plan.document.tolist()) == list(range(len(lengths)))
    assert all(plan.row(r).size for r in range(plan.num_rows))


@given(problems(), st.integers(0, 2**32))
def test_shuffled_keeps_rows_whole(problem, seed):
    lengths, capacity = problem
    plan = plan_rows(lengths, capacity)
    mixed = shuffled(plan, seed)
    rows = sorted(tuple(plan.row(r).tolist()) for r in range(plan.num_rows))
    assert sorted(tuple(mixed.row(r).tolist()) for r in range(mixed.num_rows)) == rows


def test_plan_and_order_ignore_ambient_random_state():
    lengths = [3, 5, 2, 6, 1, 1, 4, 8]
    np.random.seed(1)  # noqa: NPY002 - the ambient state is what is tested
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    first = shuffled(plan_rows(lengths, 8), 3)
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002
    np.random.rand(5)  # noqa: NPY002
    second = shuffled(plan_rows(lengths, 8), 3)
    assert first.document.tolist() == second.document.tolist()
    assert first.offsets.tolist() == second.offsets.tolist()


def test_shuffled_depends_on_seed():
    plan = plan_rows([8] * 50, 8)
    assert shuffled(plan, 0).document.tolist() != shuffled(plan, 1).document.tolist()


@pytest.mark.parametrize("lengths", [[1, 9], [0, 3]])
def test_plan_rows_refuses_length_out_of_range(lengths):
    with pytest.raises(ContractError, match="expected 1 to capacity = 8"):
        plan_rows(lengths, 8)


def test_plan_rows_empty_is_no_rows():
    assert plan_rows([], 8).num_rows == 0
