"""Ranks take turns: every row once, the same number on each, and any resume point goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megapack.errors import ConfigError
from megapack.store.order import RowOrder
from megapack.store.rank_rows import RankPlan, RankRows, Remainder, share_of

FILLER = -1
GROUPS = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any)
REMAINDERS = st.sampled_from(Remainder)


def rank_rows(groups, rank, world, *, remainder=Remainder.FILL, epochs=1, consumed=0):
    """Row numbers instead of rows."""
    return RankRows(
        RankPlan(rank=rank, world=world, epochs=epochs, remainder=remainder),
        order=RowOrder(group_sizes=tuple(groups), seed=3),
        read=lambda numbers: iter(numbers.tolist()),
        filler=FILLER,
        view=lambda row: row,
        consumed=consumed,
    )


@given(groups=GROUPS, world=st.integers(1, 5), remainder=REMAINDERS, epochs=st.integers(1, 3))
def test_ranks_together_read_every_row_of_an_epoch_once(groups, world, remainder, epochs):
    num_rows = sum(groups)
    share = share_of(num_rows, world, remainder)
    shares = [
        list(rank_rows(groups, rank, world, remainder=remainder, epochs=epochs))
        for rank in range(world)
    ]
    assert {len(rows) for rows in shares} == {share.rows_per_rank * epochs}
    for epoch in range(epochs):
        of_epoch = slice(epoch * share.rows_per_rank, (epoch + 1) * share.rows_per_rank)
        seen = [row for rows in shares for row in rows[of_epoch]]
        assert seen.count(FILLER) == share.filler_rows
        real = [row for row in seen if row != FILLER]
        assert len(real) == len(set(real)) == num_rows - share.dropped_rows


@given(
    groups=GROUPS,
    world=st.integers(1, 4),
    remainder=REMAINDERS,
    stop=st.integers(0, 30),
    data=st.data(),
)
def test_a_run_goes_on_from_its_resume_point_with_the_same_rows(
    groups, world, remainder, stop, data
):
    rank = data.draw(st.integers(0, world - 1))
    whole = list(rank_rows(groups, rank, world, remainder=remainder, epochs=3))
    stop = min(stop, len(whole))
    first = rank_rows(groups, rank, world, remainder=remainder, epochs=3)
    begun = [next(first) for _ in range(stop)]
    rest = rank_rows(groups, rank, world, remainder=remainder, epochs=3, consumed=first.consumed)
    assert begun + list(rest) == whole


@given(groups=GROUPS, before=st.integers(1, 4), after=st.integers(1, 4), turns=st.integers(0, 9))
def test_a_run_goes_on_with_another_number_of_ranks_and_loses_nothing(groups, before, after, turns):
    readers = [rank_rows(groups, rank, before) for rank in range(before)]
    seen = []
    for _ in range(min(turns, share_of(sum(groups), before, Remainder.FILL).rows_per_rank)):
        seen += [next(reader) for reader in readers]
    points = {reader.consumed for reader in readers}
    assert len(points) == 1
    for rank in range(after):
        seen += list(rank_rows(groups, rank, after, consumed=min(points)))
    assert sorted(row for row in seen if row != FILLER) == list(range(sum(groups)))


def test_epochs_have_orders_of_their_own_and_none_never_stops():
    endless = rank_rows([50], 0, 1, epochs=None)
    first, second = ([next(endless) for _ in range(50)] for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(50))
    assert endless.consumed == 100


def test_shares_say_what_is_filled_up_and_what_is_left_out():
    assert share_of(5, 2, Remainder.FILL).filler_rows == 1
    assert share_of(5, 2, Remainder.DROP).dropped_rows == 1
    assert share_of(4, 2, Remainder.FILL).filler_rows == 0
    assert share_of(1, 4, Remainder.DROP).rows_per_rank == 0


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank, world):
    with pytest.raises(ConfigError, match="rank"):
        rank_rows([3], rank, world)


def test_a_negative_resume_point_is_refused():
    with pytest.raises(ConfigError, match="consumed"):
        rank_rows([3], 0, 1, consumed=-1)
