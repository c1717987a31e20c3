from itertools import accumulate, pairwise
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ConfigError
from megapack.store.location import open_location
from megapack.store.manifest import Split
from megapack.store.order import RowOrder, StepPlan
from megapack.store.reader import open_dataset
from megapack.store.step_stream import DpSlice, rank_steps
from megapack.store.versions import commit
from tests.support.store_rows import dataset_manifest, put_rows

GOLDEN = [4, 3, 1, 0, 2, 7, 5, 6, 3, 4, 0, 2, 1, 6, 7, 5]
_SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any)


@settings(deadline=None, max_examples=50)
@given(_SIZES, st.integers(0, 2**40), st.integers(0, 3))
def test_every_epoch_is_a_permutation(sizes, seed, epoch):
    order = RowOrder(group_sizes=tuple(sizes), seed=seed)
    rows = order.rows_at(epoch * order.num_rows, order.num_rows)
    assert sorted(rows.tolist()) == list(range(sum(sizes)))


@settings(deadline=None, max_examples=50)
@given(_SIZES, st.integers(0, 2**40), st.integers(0, 60), st.integers(0, 40), st.integers(0, 40))
def test_any_cut_of_the_stream_is_the_same_stream(sizes, seed, start, first, second):
    order = RowOrder(group_sizes=tuple(sizes), seed=seed)
    whole = order.rows_at(start, first + second)
    cut = np.concatenate([order.rows_at(start, first), order.rows_at(start + first, second)])
    assert whole.tolist() == cut.tolist()


@settings(deadline=None, max_examples=50)
@given(_SIZES, st.integers(0, 100))
def test_an_epoch_reads_one_group_after_another(sizes, seed):
    order = RowOrder(group_sizes=tuple(sizes), seed=seed)
    starts = np.cumsum([0, *sizes])
    groups = np.searchsorted(starts, order.rows_at(0, order.num_rows), side="right")
    assert np.count_nonzero(np.diff(groups)) == sum(size > 0 for size in sizes) - 1


def test_order_literal():
    order = RowOrder(group_sizes=(3, 2, 3), seed=7)
    assert order.rows_at(0, 16).tolist() == GOLDEN
    assert order.rows_at(0, 8).tolist() != order.rows_at(8, 8).tolist()
    assert RowOrder(group_sizes=(3, 2, 3), seed=8).rows_at(0, 16).tolist() != GOLDEN


def test_order_neither_reads_nor_changes_ambient_random_state():
    order = RowOrder(group_sizes=(5, 5), seed=0)
    np.random.seed(1)  # noqa: NPY002 - the ambient state is what is tested
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    first = order.rows_at(0, 30).tolist()
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    np.random.seed(2)  # noqa: NPY002
    assert order.rows_at(0, 30).tolist() == first


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 4),
    st.sampled_from([1, 2, 3, 4]),
    st.lists(st.integers(0, 10**9), min_size=12, max_size=12),
)
def test_ranks_share_a_step_evenly(multiple, dp_size, costs):
    rows = RowOrder(group_sizes=(50,), seed=1).rows_at(5, 12 * multiple)
    step = StepPlan(first_consumed=5, rows=rows)
    shares = [
        step.rank_rows(dp_rank=rank, dp_size=dp_size, costs=costs * multiple)
        for rank in range(dp_size)
    ]
    assert {share.size for share in shares} == {12 * multiple // dp_size}
    assert sorted(np.concatenate(shares).tolist()) == sorted(step.rows.tolist())
    plain = [step.rank_rows(dp_rank=rank, dp_size=dp_size) for rank in range(dp_size)]
    assert np.concatenate(plain).tolist() == step.rows.tolist()


def test_costly_rows_are_spread():
    step = StepPlan(first_consumed=0, rows=RowOrder(group_sizes=(8,), seed=1).rows_at(0, 8))
    costs = np.array([100, 100, 1, 1, 1, 1, 1, 1])
    by_row = dict(zip(step.rows.tolist(), costs.tolist(), strict=True))
    loads = [
        sum(by_row[row] for row in step.rank_rows(dp_rank=rank, dp_size=2, costs=costs).tolist())
        for rank in range(2)
    ]
    assert loads == [103, 103]


def test_rank_that_does_not_divide_is_refused():
    step = StepPlan(first_consumed=0, rows=RowOrder(group_sizes=(8,), seed=1).rows_at(0, 8))
    with pytest.raises(ConfigError, match="dp_rank 0, dp_size 3, 8 rows"):
        step.rank_rows(dp_rank=0, dp_size=3)
    with pytest.raises(ConfigError, match="dp_rank 2, dp_size 2"):
        step.rank_rows(dp_rank=2, dp_size=2)
    with pytest.raises(ConfigError, match="empty split"):
        RowOrder(group_sizes=(0,), seed=1)


def _consumed(steps, count):
    """Row numbers and state of the next steps."""
    taken = [next(steps) for _ in range(count)]
    return [[int(row.tokens[0]) for row in step.rows] for step in taken], (
        taken[-1].plan.next_consumed if taken else None
    )


@pytest.mark.parametrize("stop_after", range(1, 8))
def test_resume_gives_the_uninterrupted_stream_also_at_the_epoch_end(tmp_path, stop_after):
    location = open_location(tmp_path)
    commit(
        location, dataset_manifest([put_rows(location, range(5)), put_rows(location, [5, 6, 7])])
    )
    dp = DpSlice(rank=0, size=1)
    with open_dataset(location) as dataset:
        fixed = {"split": Split.TRAIN, "seed": 3, "global_batch_rows": 4, "dp": dp}
        whole, _ = _consumed(rank_steps(dataset, **fixed), 8)
        assert sorted(whole[0] + whole[1]) == list(range(8))
        before, state = _consumed(rank_steps(dataset, **fixed), stop_after)
        assert state == 4 * stop_after
    with open_dataset(location) as again:
        after, _ = _consumed(rank_steps(again, **fixed, consumed_rows=state), 8 - stop_after)
    assert before + after == whole


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.sampled_from([1, 2, 4, 8]),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=4),
    st.integers(0, 1000),
)
def test_stops_anywhere_and_other_dp_sizes_leave_the_stream_as_it_was(sizes, batch, legs, seed):
    with TemporaryDirectory() as folder:
        location = open_location(folder)
        starts = [0, *accumulate(sizes)]
        parts = [put_rows(location, range(*ends)) for ends in pairwise(starts)]
        commit(location, dataset_manifest(parts))
        fixed = {"split": Split.TRAIN, "seed": seed, "global_batch_rows": batch}
        with open_dataset(location) as dataset:
            whole = rank_steps(dataset, **fixed, dp=DpSlice(rank=0, size=1))
            expected = [sorted(row) for row in _consumed(whole, 4 * len(legs))[0]]
        found, state = [], 0
        for count, dp_size in legs:
            size = min(dp_size, batch)
            with open_dataset(location) as dataset:
                ranks = [
                    rank_steps(dataset, **fixed, dp=DpSlice(rank=r, size=size), consumed_rows=state)
                    for r in range(size)
                ]
                for _ in range(count):
                    steps = [next(rank) for rank in ranks]
                    assert len({len(step.rows) for step in steps}) == 1
                    found.append(sorted(int(row.tokens[0]) for s in steps for row in s.rows))
                    state = steps[0].plan.next_consumed
        assert found == expected[: len(found)]


def test_state_is_what_was_consumed_not_what_was_fetched_ahead(tmp_path):
    location = open_location(tmp_path)
    commit(location, dataset_manifest([put_rows(location, range(40))]))
    with open_dataset(location) as dataset:
        steps = rank_steps(
            dataset, split=Split.TRAIN, seed=0, global_batch_rows=2, dp=DpSlice(rank=0, size=1)
        )
        assert [next(steps).plan.next_consumed for _ in range(3)] == [2, 4, 6]


def test_resume_with_another_dp_sees_the_same_steps(tmp_path):
    location = open_location(tmp_path)
    commit(location, dataset_manifest([put_rows(location, range(10))]))
    with open_dataset(location) as dataset:
        streams = {
            size: [
                rank_steps(
                    dataset,
                    split=Split.TRAIN,
                    seed=5,
                    global_batch_rows=4,
                    dp=DpSlice(rank=rank, size=size),
                    consumed_rows=8,
                )
                for rank in range(size)
            ]
            for size in (1, 2, 4)
        }
        for _ in range(4):
            union = {
                size: sorted(int(row.tokens[0]) for stream in ranks for row in next(stream).rows)
                for size, ranks in streams.items()
            }
            assert union[1] == union[2] == union[4]
