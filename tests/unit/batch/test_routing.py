"""Routes on their way from documents to routers, without a model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.batch.routing import (
    ROUTED_EXPERTS,
    AttachRoutes,
    MissingRoutes,
    RouteTable,
    fill_padding,
    for_routers,
    router_order,
)
from megapack.errors import ConfigError, DataError
from megapack.layout.granularity import ParallelSizes
from megapack.layout.token_fields import unplace
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from megapack.records.routed_experts import NOT_CAPTURED, RoutedExperts, RouteShape
from tests.support.microbatches import microbatch
from tests.support.routes import random_routes
from tests.support.rows import make_row

SHAPE = RouteShape(num_layers=3, top_k=2, num_experts=8)
ROW = make_row([5, 17, 3, 23], seed=0)


def table_of(
    row: PackedRow, *, missing: MissingRoutes = MissingRoutes.REFUSE, seed: int = 0
) -> RouteTable:
    return RouteTable.of(random_routes([row], SHAPE, seed=seed), shape=SHAPE, missing=missing)


def test_place_marks_padding_and_gives_documents_back() -> None:
    table = table_of(ROW)
    placed = table.place(ROW)
    assert placed.shape == (96, 3, 2)
    assert np.array_equal((placed == NOT_CAPTURED).all(axis=(1, 2)), ROW.layout.padding_mask())
    for document_id, found in zip(ROW.document_ids, unplace(placed, ROW.layout), strict=True):
        assert np.array_equal(found, table.by_document[document_id].experts)


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_shares_of_all_cp_ranks_are_the_row_and_stay_marked(cp: int) -> None:
    table = table_of(ROW)
    placed = table.place(ROW)
    seen = []
    for rank in range(cp):
        context = ParallelContext.fake(ParallelSizes(cp=cp), cp_rank=rank)
        batch = AttachRoutes(table=table)(microbatch(ROW, context))
        mine = batch.fields[ROUTED_EXPERTS]
        index = batch.attention.cp_index
        assert mine.shape == (1, 96 // cp, 3, 2)
        assert torch.equal(mine[0], torch.from_numpy(placed[index]))
        assert torch.equal((mine[0] < 0).all(-1).all(-1), batch.padding_mask[0])
        seen += index.tolist()
    assert sorted(seen) == list(range(96))


def test_sequence_parallel_ranks_have_consecutive_stretches_of_the_share() -> None:
    parts = []
    for tp_rank in range(2):
        sizes = ParallelSizes(tp=2, sequence_parallel=True)
        context = ParallelContext.fake(sizes, tp_rank=tp_rank)
        batch = AttachRoutes(table=table_of(ROW))(microbatch(ROW, context))
        parts.append(router_order(batch.fields[ROUTED_EXPERTS], context))
        assert torch.equal(parts[-1], batch.fields[ROUTED_EXPERTS][0][48 * tp_rank :][:48])
    assert torch.equal(torch.cat(parts), batch.fields[ROUTED_EXPERTS][0])


def test_router_order_of_several_rows_is_position_first() -> None:
    value = torch.arange(12).reshape(2, 6)
    whole = router_order(value, ParallelContext.single())
    assert whole.tolist() == [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]
    sizes = ParallelSizes(tp=2, sequence_parallel=True)
    second = router_order(value, ParallelContext.fake(sizes, tp_rank=1))
    assert second.tolist() == [3, 9, 4, 10, 5, 11]


def test_padding_gets_distinct_experts_spread_evenly_and_real_rows_stay() -> None:
    """Expert 0, or 0..K-1, for all padding makes a hot rank."""
    context = ParallelContext.single()
    row = make_row([1, 2, 1, 5], seed=1)
    batch = AttachRoutes(table=table_of(row))(microbatch(row, context))
    routes = for_routers(batch, context, num_experts=SHAPE.num_experts)
    padding = batch.padding_mask[0]
    assert torch.equal(routes[~padding], batch.fields[ROUTED_EXPERTS][0][~padding].long())
    filled = routes[padding]
    assert filled.shape[0] == 96 - 9
    assert (filled[..., 0] != filled[..., 1]).all()
    for layer in range(SHAPE.num_layers):
        load = torch.bincount(filled[:, layer].flatten(), minlength=8)
        assert load.max() - load.min() <= 1


@settings(max_examples=50, deadline=None)
@given(
    padding=st.lists(st.booleans(), min_size=1, max_size=40),
    num_experts=st.integers(1, 9),
    data=st.data(),
)
def test_fill_padding_is_a_valid_route_at_any_pattern(
    padding: list[bool], num_experts: int, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, num_experts))
    marked = torch.full((len(padding), 2, top_k), NOT_CAPTURED)
    filled = fill_padding(marked, torch.tensor(padding), num_experts=num_experts)
    for position, is_padding in enumerate(padding):
        for route in filled[position].tolist():
            if is_padding:
                assert len(set(route)) == top_k
                assert all(0 <= expert < num_experts for expert in route)
            else:
                assert route == [NOT_CAPTURED] * top_k


def test_missing_routes_of_a_real_token_are_refused_or_left_marked() -> None:
    captured = random_routes([ROW], SHAPE, seed=0)
    holed = np.array(captured[1].experts)
    holed[4, 2] = NOT_CAPTURED
    captured[1] = RoutedExperts(document_id=captured[1].document_id, experts=holed)
    with pytest.raises(DataError, match=r"none for 1, the first at position 4\. Capture them, or"):
        RouteTable.of(captured, shape=SHAPE, missing=MissingRoutes.REFUSE).place(ROW)
    live = RouteTable.of(captured[:3], shape=SHAPE, missing=MissingRoutes.LIVE)
    context = ParallelContext.single()
    batch = AttachRoutes(table=live)(microbatch(ROW, context))
    routes = for_routers(batch, context, num_experts=8)
    unknown = (routes < 0).all(-1)
    starts = ROW.layout.slot_starts
    expected = torch.zeros(96, 3, dtype=torch.bool)
    expected[starts[1] + 4, 2] = True
    expected[starts[3] : starts[3] + 23] = True
    assert torch.equal(unknown, expected)


def test_stale_rows_of_a_padded_capture_are_refused() -> None:
    """Rows that an engine repeats beyond the last token look real; only lengths tell."""
    captured = random_routes([ROW], SHAPE, seed=0)
    padded = np.concatenate([captured[0].experts, captured[0].experts[-3:]])
    stale = RoutedExperts(document_id=captured[0].document_id, experts=padded)
    table = RouteTable.of([stale], shape=SHAPE, missing=MissingRoutes.LIVE)
    with pytest.raises(DataError, match=r"expected routes for its 5 positions, found 8\. Give one"):
        table.place(ROW)


@pytest.mark.parametrize(
    ("route", "found"),
    [([3, 3], r"\[3, 3\]"), ([0, 8], r"\[0, 8\]"), ([-1, 4], r"\[-1, 4\]"), ([-2, 4], r"\[-2, 4")],
)
def test_route_that_is_none_is_refused_with_its_place(route: list[int], found: str) -> None:
    experts = np.array(random_routes([ROW], SHAPE, seed=0)[0].experts)
    experts[2, 1] = route
    wrong = RoutedExperts(document_id="d", experts=experts)
    with pytest.raises(DataError, match=f"position 2, MoE layer 1: expected 2 distinct.*{found}"):
        RouteTable.of([wrong], shape=SHAPE, missing=MissingRoutes.LIVE)


def test_routes_of_another_model_or_shape_are_refused() -> None:
    (first, *_) = random_routes([ROW], SHAPE, seed=0)
    with pytest.raises(DataError, match="expected 4 MoE layers of 2 experts, found 3 of 2"):
        first.check(replace(SHAPE, num_layers=4))
    with pytest.raises(DataError, match=r"expected signed integers .* found uint8 \(5, 3, 2\)"):
        RoutedExperts(document_id="d", experts=first.experts.astype(np.uint8))
    with pytest.raises(DataError, match="expected expert ids below"):
        RoutedExperts(document_id="d", experts=first.experts.astype(np.int64) + 70_000)
    with pytest.raises(ConfigError, match="1 <= top_k <= num_experts"):
        RouteShape(num_layers=1, top_k=9, num_experts=8)
    with pytest.raises(ConfigError, match="without MoE layers has no routes"):
        RouteShape(num_layers=0, top_k=1, num_experts=8)


def test_document_with_two_different_captures_is_refused() -> None:
    twice = [random_routes([ROW], SHAPE, seed=seed)[0] for seed in (0, 1)]
    with pytest.raises(DataError, match="expected one set of routes, found two"):
        RouteTable.of(twice, shape=SHAPE, missing=MissingRoutes.LIVE)
    RouteTable.of([twice[0], twice[0]], shape=SHAPE, missing=MissingRoutes.LIVE)
