"""The table of layouts: when a row stands, which layouts are refused, and what the page keeps."""

import numpy as np
import pytest

from benchmarks.equivalence_page import BEGIN, END, Head, renewed, tables
from megapack.jobs.model_layout import layout_faults
from megapack.layout.granularity import ParallelSizes
from tests.support.equivalence import Equivalence, Measured
from tests.support.layout_table import Case, Dtype, cases, model_job, random_rows, refusals
from tests.support.ranks import RankFailure
from tests.support.rows import StepOutcome

CASE = Case(name="tp2", sizes=ParallelSizes(tp=2))


def outcome(*, loss=10.0, off=0.0, count=7, metrics=None):
    return StepOutcome(
        loss_sum=loss,
        num_target_tokens=count,
        normalizer_tokens=count,
        metrics={"loss": loss / 7} if metrics is None else metrics,
        gradients={"w": np.array([1.0 + off, -2.0]), "v": np.array([1e-3])},
    )


class Answers:
    """In place of the rank server: one process is off by `own` in float32, a layout by `errors`."""

    def __init__(self, errors, *, own=1e-7, other_rank=None):
        self.errors, self.own, self.other_rank = errors, own, other_rank

    def run(self, _, *, world_size, dtypes, **__):
        one = {Dtype.FLOAT64: 0.0, Dtype.FLOAT32: self.own}
        offs = one if world_size == 1 else self.errors
        first = {
            dtype: offs[dtype] if isinstance(offs[dtype], StepOutcome) else outcome(off=offs[dtype])
            for dtype in dtypes
        }
        return [first] * (world_size - 1) + [self.other_rank or first]


def measured(**given):
    errors = {Dtype.FLOAT64: 0.0, Dtype.FLOAT32: 0.0, **given.pop("errors", {})}
    return Equivalence(server=Answers(errors, **given), rows=[]).measure(CASE)


def test_equal_layout_stands():
    assert measured(errors={Dtype.FLOAT64: 1e-13, Dtype.FLOAT32: 3e-7}).stands


@pytest.mark.parametrize(
    "errors",
    [
        {Dtype.FLOAT64: 3e-12},
        {Dtype.FLOAT32: 1e-6},
        {Dtype.FLOAT64: float("nan")},
        {Dtype.FLOAT64: outcome(loss=10.0 + 1e-10)},
        {Dtype.FLOAT64: outcome(count=8)},
        {Dtype.FLOAT64: outcome(metrics={"loss": 10.0 / 7 + 1e-9})},
        {Dtype.FLOAT64: outcome(metrics={})},
    ],
    ids=["gradient64", "gradient32", "nan", "loss", "count", "metric", "missing-metric"],
)
def test_layout_that_is_off_does_not_stand(errors):
    assert not measured(errors=errors).stands


def test_rank_that_reports_other_numbers_is_a_failure():
    other = {dtype: outcome(loss=11.0) for dtype in (Dtype.FLOAT64, Dtype.FLOAT32)}
    found = measured(other_rank=other)
    assert not found.stands
    assert "rank 1 reports other numbers" in found.failure


def test_layout_that_did_not_run_does_not_stand():
    class Dying(Answers):
        def run(self, *_, **__):
            raise RankFailure("rank 1 died")

    found = Equivalence(server=Dying({}), rows=[]).measure(CASE)
    assert not found.stands
    assert found.failure == "rank 1 died"


def test_every_refusal_has_a_reason_and_no_row_of_the_table_is_refused():
    assert all("expected" in refusal.reason for refusal in refusals())
    for case in cases():
        assert not layout_faults(model_job(case.model, case.settings), case.sizes), case.name


@pytest.mark.parametrize("seed", range(20))
def test_random_rows_hold_at_least_three_documents_of_odd_lengths(seed):
    rows = random_rows(seed)
    assert len(rows) == 4
    for row in rows:
        lengths = row.layout.lengths
        assert lengths.size >= 3
        assert (lengths % 2 == 1).all()
        assert lengths.min() == 1
        assert row.num_target_tokens > 0


def test_page_keeps_its_prose_and_shows_failures():
    head = Head(date="2026-01-01", seed=5, seconds=1.0, machine={"processor": "any"})
    found = [measured(), measured(errors={Dtype.FLOAT64: 1.0}), Measured(case=CASE, failure="x")]
    page = renewed(f"before\n{BEGIN}old\n{END}after\n", tables(found, refusals(), head))
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "old" not in page
    assert "1 of 3 layouts stand" in page
    assert page.count("**not equal**") == page.count("**did not run**") == 1
    assert "tp2 without sp, MoE" in page
    with pytest.raises(ValueError, match="expected the marks"):
        renewed("no marks", "")
