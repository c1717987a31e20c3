import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megapack.errors import ConfigError, ContractError
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import IGNORE_INDEX, PackLayout
from megapack.layout.runs import check_runs, count_targets, mask_of_runs, runs_of_mask
from megapack.layout.token_fields import TokenField, place, unplace
from megapack.layout.zigzag import CpBalance, zigzag_index


@st.composite
def layouts(draw):
    """A layout whose slots serve the drawn cp size, with a tail of any legal length."""
    size = draw(st.sampled_from([1, 2, 3, 4]))
    segment = 2 * size if size > 1 else 1
    lengths = draw(st.lists(st.integers(1, 23), max_size=6))
    used = sum(-(-length // segment) * segment for length in lengths)
    row = used + segment * draw(st.integers(0 if used else 1, 5))
    layout = PackLayout(
        row_length=row, lengths=lengths, granularity=Granularity(segment=segment, row=segment)
    )
    return layout, size


def of(row_length, lengths, segment=1):
    return PackLayout(
        row_length=row_length,
        lengths=lengths,
        granularity=Granularity(segment=segment, row=segment),
    )


def test_positions_restart_and_run_through_padding():
    layout = of(16, [5, 3], segment=4)
    assert layout.position_ids().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 0, 1, 2, 3]
    assert layout.segment_ids().tolist() == [0] * 8 + [1] * 4 + [2] * 4
    assert layout.cu_seqlens.tolist() == [0, 5, 8]
    assert layout.cu_seqlens_padded.tolist() == [0, 8, 12]
    assert (layout.tail_length, layout.max_seqlen, layout.num_real_tokens) == (4, 8, 8)


def test_padding_mask_is_true_at_padding():
    mask = of(16, [5, 3], segment=4).padding_mask()
    assert np.flatnonzero(~mask).tolist() == [0, 1, 2, 3, 4, 8, 9, 10]


def test_filler_row_is_all_padding():
    layout = of(8, [], segment=4)
    assert layout.padding_mask().all()
    assert layout.max_seqlen == 0
    assert layout.cu_seqlens_padded.tolist() == [0]
    assert layout.segment_ids().tolist() == [0] * 8


def test_labels_are_next_token_inside_runs_only():
    layout = of(6, [4, 2])
    labels = layout.labels([10, 11, 12, 13, 20, 21], [1, 3, 4, 5])
    assert labels.tolist() == [IGNORE_INDEX, 12, 13, IGNORE_INDEX, 21, IGNORE_INDEX]


def test_labels_final_label_stands_at_last_position():
    labels = of(3, [3]).labels([5, 6, 7], [1, 3], final_label=8)
    assert labels.tolist() == [IGNORE_INDEX, 7, 8]


def test_zigzag_reference_is_per_slot():
    assert zigzag_index([0, 8, 12], cp_size=2, cp_rank=0).tolist() == [0, 1, 6, 7, 8, 11]
    assert zigzag_index([0, 8, 12], cp_size=2, cp_rank=1).tolist() == [2, 3, 4, 5, 9, 10]
    assert zigzag_index([0, 12], cp_size=2, cp_rank=0).tolist() == [0, 1, 2, 9, 10, 11]


@pytest.mark.parametrize("rank", [0, 1])
def test_offsets_padded_to_a_constant_number_by_repeating_the_end_change_no_share(rank):
    offsets = [0, 8, 12, 12, 12, 12, 12, 12]
    padded = zigzag_index(offsets, cp_size=2, cp_rank=rank)
    assert padded.tolist() == zigzag_index([0, 8, 12], cp_size=2, cp_rank=rank).tolist()


def test_zigzag_refuses_slot_off_granularity():
    with pytest.raises(ConfigError, match=r"slot 1 is 6 positions long, expected a multiple of 2"):
        zigzag_index([0, 8, 14], cp_size=2, cp_rank=0)


@given(layouts(), st.sampled_from(list(CpBalance)))
def test_cp_index_union_is_permutation_with_equal_shares(case, balance):
    layout, cp = case
    shards = [layout.cp_index(cp_size=cp, cp_rank=r, balance=balance) for r in range(cp)]
    assert {shard.size for shard in shards} == {layout.row_length // cp}
    assert sorted(np.concatenate(shards).tolist()) == list(range(layout.row_length))


@given(layouts())
def test_cp_index_balances_causal_work_in_every_slot(case):
    layout, cp = case
    positions = layout.position_ids()
    segments = layout.segment_ids()
    for slot in range(layout.num_segments):
        work = [
            int(positions[index][segments[index] == slot].sum())
            for index in (layout.cp_index(cp_size=cp, cp_rank=r) for r in range(cp))
        ]
        assert len(set(work)) == 1


@given(layouts(), st.data())
def test_unplace_inverts_place(case, data):
    layout, _ = case
    values = [
        data.draw(st.lists(st.integers(-9, 9), min_size=n, max_size=n))
        for n in layout.lengths.tolist()
    ]
    row = place(TokenField(name="x", dtype=np.int32, pad=-7), values, layout)
    assert [part.tolist() for part in unplace(row, layout)] == values
    assert (row[layout.padding_mask()] == -7).all()


def test_place_pad_function_gives_each_padding_its_value():
    field = TokenField(
        name="experts", dtype=np.int32, trailing=(2,), pad=lambda n: np.arange(2 * n) % 5
    )
    row = place(field, [np.full((2, 2), 9)], of(4, [2]))
    assert row.tolist() == [[9, 9], [9, 9], [4, 0], [1, 2]]


def test_place_refuses_wrong_length():
    with pytest.raises(ContractError, match=r"segment 1: expected shape \(3,\), found \(2,\)"):
        place(TokenField(name="x", dtype=np.int32, pad=0), [[1], [1, 2]], of(4, [1, 3]))


@pytest.mark.parametrize(
    ("row", "lengths", "segment", "message"),
    [
        (12, [5, 5], 8, "positive multiple of row granularity 8"),
        (16, [5, 9], 8, "cover 24 positions, expected at most row_length = 16"),
        (16, [5, 0], 8, r"lengths\[1\] = 0, expected at least 1"),
    ],
)
def test_layout_refuses_impossible_geometry(row, lengths, segment, message):
    with pytest.raises(ContractError, match=message):
        of(row, lengths, segment=segment)


def test_layout_arrays_are_read_only():
    layout = of(4, [2])
    with pytest.raises(ValueError, match="read-only"):
        layout.lengths[0] = 3


@given(st.lists(st.booleans(), max_size=40))
def test_runs_round_trip_and_count(mask):
    runs = runs_of_mask(mask)
    assert mask_of_runs(runs, len(mask)).tolist() == mask
    assert count_targets(runs) == sum(mask)
    check_runs(runs, low=0, high=len(mask), where="test")


@pytest.mark.parametrize(
    ("runs", "message"),
    [([1, 1], "1 then 1 at edge 0"), ([1, 3, 3, 4], "3 then 3"), ([0, 2], "inside"), ([1], "2R")],
)
def test_check_runs_refuses(runs, message):
    with pytest.raises(ContractError, match=message):
        check_runs(np.array(runs, np.int32), low=1, high=4, where="t")
