"""Pieces of queries and keys against a causal mask worked out position by position."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import PackLayout
from megapack.layout.tail import tail_segments
from megapack.model.attention_plan import AttentionPlan, make_plan

EIGHTS = Granularity(segment=8, row=8)


def plan_of(layout: PackLayout, *, cp: int, rank: int) -> AttentionPlan:
    tail = tail_segments(layout)
    lengths = np.append(layout.lengths, np.zeros_like(tail))
    slots = np.append(layout.padded_lengths, tail)
    real, padded = (torch.from_numpy(np.append(0, np.cumsum(x))) for x in (lengths, slots))
    return make_plan(real=real, padded=padded, cp_size=cp, cp_rank=rank)


def visible(layout: PackLayout, *, cp: int) -> np.ndarray:
    """bool [T, T]: which row position sees which, read off the plans of all ranks."""
    seen = np.zeros((layout.row_length, layout.row_length), dtype=np.bool_)
    for rank in range(cp):
        index = layout.cp_index(cp_size=cp, cp_rank=rank)
        for piece in plan_of(layout, cp=cp, rank=rank).pieces:
            queries = index[slice(*piece.query)]
            keys = np.arange(*piece.key)
            mask = np.tri(len(queries), dtype=np.bool_) if piece.mask is None else piece.mask
            seen[np.ix_(queries, keys)] |= np.asarray(mask)
    return seen


def causal_inside_documents(layout: PackLayout) -> np.ndarray:
    documents = np.where(layout.padding_mask(), -1, layout.segment_ids())
    same = (documents[:, None] == documents[None, :]) & (documents >= 0)[:, None]
    return same & np.tri(layout.row_length, dtype=np.bool_)


@given(lengths=st.lists(st.integers(1, 21), min_size=0, max_size=5), cp=st.sampled_from([1, 2, 4]))
@settings(deadline=None, max_examples=60)
def test_pieces_of_all_ranks_are_causal_attention_inside_documents(
    lengths: list[int], cp: int
) -> None:
    layout = PackLayout(row_length=128, lengths=np.array(lengths, np.int32), granularity=EIGHTS)
    assert np.array_equal(visible(layout, cp=cp), causal_inside_documents(layout))


def test_repeated_offsets_add_nothing() -> None:
    lengths = torch.tensor([0, 3, 7])
    slots = torch.tensor([0, 4, 8])
    more = torch.tensor([7, 7, 7])
    with_sentinels = make_plan(
        real=torch.cat((lengths, more)),
        padded=torch.cat((slots, torch.tensor([8, 8, 8]))),
        cp_size=2,
        cp_rank=1,
    )
    plain = make_plan(real=lengths, padded=slots, cp_size=2, cp_rank=1)
    assert [p.query for p in with_sentinels.pieces] == [p.query for p in plain.pieces]
    assert with_sentinels.num_local == plain.num_local == 4


def test_rank_with_only_padding_has_no_piece() -> None:
    layout = PackLayout(row_length=8, lengths=np.array([1], np.int32), granularity=EIGHTS)
    assert plan_of(layout, cp=2, rank=1).pieces == ()
    assert len(plan_of(layout, cp=2, rank=0).pieces) == 1


@pytest.mark.parametrize(
    ("cp", "rank", "queries"), [(1, 0, [(0, 5), (8, 11)]), (2, 0, [(0, 2), (4, 6)])]
)
def test_queries_golden(cp: int, rank: int, queries: list[tuple[int, int]]) -> None:
    layout = PackLayout(row_length=16, lengths=np.array([5, 3], np.int32), granularity=EIGHTS)
    assert [piece.query for piece in plan_of(layout, cp=cp, rank=rank).pieces] == queries
