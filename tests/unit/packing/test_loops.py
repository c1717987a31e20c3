import logging
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.packing import loops
from megapack.packing.loops import PLAIN, Backend, compiled_loops, loops_for
from megapack.packing.planner import best_fit_decreasing, plan_rows
from tests.support import packing_problems as problems
from tests.support.packing_problems import same_plan

needs_numba = pytest.mark.skipif(
    compiled_loops() is None, reason="numba is not installed or cannot keep its code"
)


@pytest.fixture
def forgotten():
    """What was loaded is asked for again, here and afterwards."""
    compiled_loops.cache_clear()
    yield
    compiled_loops.cache_clear()


@st.composite
def small_problems(draw):
    capacity = draw(st.integers(1, 9000))
    longest = draw(st.integers(1, capacity))
    return draw(st.lists(st.integers(1, longest), max_size=80)), capacity


@needs_numba
@given(small_problems())
@settings(deadline=None)
def test_compiled_plan_equals_numpy_plan_bit_for_bit(problem):
    lengths, capacity = problem
    for planner in (best_fit_decreasing, plan_rows):
        compiled = planner(lengths, capacity, backend=Backend.COMPILED)
        assert same_plan(compiled, planner(lengths, capacity, backend=Backend.NUMPY))


@needs_numba
@pytest.mark.parametrize("capacity", [1000, 32768, 131072, 1_500_000])
@pytest.mark.parametrize("kind", problems.DISTRIBUTIONS)
def test_compiled_plan_equals_numpy_plan_on_real_distributions(kind, capacity):
    lengths = problems.lengths_of(kind, 30_000, capacity)
    compiled = best_fit_decreasing(lengths, capacity, backend=Backend.COMPILED)
    assert same_plan(compiled, best_fit_decreasing(lengths, capacity, backend=Backend.NUMPY))


@needs_numba
@given(small_problems(), st.integers(1, 5))
@settings(deadline=None)
def test_compiled_one_pass_closes_the_same_rows(problem, most_open):
    lengths, capacity = problem
    lengths = np.array(lengths, dtype=np.int32)
    row_of, closed, rows = PLAIN.close_rows(lengths, capacity, most_open)
    row_of_2, closed_2, rows_2 = compiled_loops().close_rows(lengths, capacity, most_open)
    assert rows == rows_2
    assert row_of.tolist() == row_of_2.tolist()
    assert closed[:rows].tolist() == closed_2[:rows].tolist()


def test_chunks_of_the_expansion_do_not_change_the_plan(monkeypatch):
    lengths = problems.lengths_of("lognormal", 3000, 4096)
    whole = best_fit_decreasing(lengths, 4096, backend=Backend.NUMPY)
    monkeypatch.setattr("megapack.packing.expansion.CHUNK", 7)
    assert same_plan(best_fit_decreasing(lengths, 4096, backend=Backend.NUMPY), whole)


def test_without_numba_numpy_plans_and_says_so(monkeypatch, caplog, forgotten):
    lengths = problems.lengths_of("few", 2000, 4096)
    before = plan_rows(lengths, 4096, backend=Backend.COMPILED)
    compiled_loops.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    with caplog.at_level(logging.INFO, logger="megapack"):
        assert loops_for(10**9) is PLAIN
    assert "planner=numpy reason=" in caplog.text
    assert same_plan(plan_rows(lengths, 4096, backend=Backend.COMPILED), before)


@needs_numba
@pytest.mark.parametrize(
    "failure", [RuntimeError("cannot cache function: no locator"), OSError(28, "disk full")]
)
def test_where_machine_code_cannot_be_kept_numpy_plans(monkeypatch, caplog, forgotten, failure):
    def fail(_):
        raise failure

    monkeypatch.setattr(loops, "_run_once", fail)
    with caplog.at_level(logging.INFO, logger="megapack"):
        assert loops_for(10**9) is PLAIN
    assert str(failure) in caplog.text


@needs_numba
def test_numba_serves_large_plans_and_smaller_ones_once_loaded(monkeypatch):
    assert loops_for(loops.FROM_DOCUMENTS) is compiled_loops()
    assert loops_for(loops.LOADED_FROM_DOCUMENTS) is compiled_loops()
    assert loops_for(loops.LOADED_FROM_DOCUMENTS - 1) is PLAIN
    monkeypatch.delitem(sys.modules, "numba")
    assert loops_for(loops.FROM_DOCUMENTS - 1) is PLAIN
    assert loops_for(10**9, Backend.NUMPY) is PLAIN
