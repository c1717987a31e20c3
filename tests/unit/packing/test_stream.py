import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ContractError
from megapack.packing.bounds import lower_bound
from megapack.packing.loops import Backend
from megapack.packing.stream import StreamPacker, StreamState, pack_stream, plan_stream
from tests.support import packing_problems as problems
from tests.support.packing_problems import check_plan, rows_of, same_plan


@st.composite
def streams(draw):
    capacity = draw(st.integers(1, 40))
    lengths = draw(st.lists(st.integers(1, capacity), max_size=60))
    return lengths, capacity, draw(st.integers(1, 6))


def best_fit_loop(lengths, capacity, most_open):
    """The rule written out: fullest row that takes it, earliest opened; close the fullest."""
    opened = []
    for document, length in enumerate(lengths):
        fitting = [row for row in opened if row["space"] >= length]
        if fitting:
            row = min(fitting, key=lambda row: row["space"])
        else:
            row = {"space": capacity, "documents": []}
            opened.append(row)
        row["space"] -= length
        row["documents"].append(document)
        fullest = min(opened, key=lambda row: row["space"])
        if fullest["space"] == 0 or len(opened) > most_open:
            opened.remove(fullest)
            yield tuple(fullest["documents"])
    yield from (tuple(row["documents"]) for row in sorted(opened, key=lambda row: row["space"]))


@given(streams())
def test_stream_closes_the_rows_of_the_loop(stream):
    lengths, capacity, most_open = stream
    packer = StreamPacker(capacity, most_open=most_open)
    rows = list(pack_stream(enumerate(lengths), packer))
    assert rows == list(best_fit_loop(lengths, capacity, most_open))
    assert [tuple(row) for row in rows_of(plan_stream(lengths, capacity, most_open=most_open))] == (
        rows
    )


@given(streams())
def test_stream_drops_nothing_and_overfills_nothing(stream):
    lengths, capacity, most_open = stream
    check_plan(plan_stream(lengths, capacity, most_open=most_open), lengths, capacity)


@given(streams())
def test_stream_holds_no_more_open_rows_than_it_may(stream):
    lengths, capacity, most_open = stream
    packer = StreamPacker(capacity, most_open=most_open)
    for document, length in enumerate(lengths):
        packer.add(document, length)
        assert len(packer.state().open_rows) <= most_open


def carried(packer):
    """The packer that another process makes from the state."""
    return StreamPacker.resume(StreamState.model_validate_json(packer.state().model_dump_json()))


@given(streams(), st.sampled_from([str, int]))
def test_stream_stopped_at_any_row_goes_on_with_exactly_the_rest(stream, named):
    lengths, capacity, most_open = stream
    source = [(named(i), length) for i, length in enumerate(lengths)]
    whole = list(pack_stream(source, StreamPacker(capacity, most_open=most_open)))
    for stop in range(len(whole) + 1):
        packer = StreamPacker(capacity, most_open=most_open)
        seen = list(itertools.islice(pack_stream(source, packer), stop))
        resumed = carried(packer)
        assert seen + list(pack_stream(source[resumed.consumed :], resumed)) == whole


@given(streams())
def test_stream_killed_between_any_two_documents_goes_on_with_exactly_the_rest(stream):
    lengths, capacity, most_open = stream
    whole = list(pack_stream(enumerate(lengths), StreamPacker(capacity, most_open=most_open)))
    packer = StreamPacker(capacity, most_open=most_open)
    rows = []
    for document, length in enumerate(lengths):
        packer = carried(packer)
        assert packer.consumed == document
        row = packer.add(document, length)
        rows += [row] if row else []
    assert rows + list(carried(packer).finish()) == whole


def test_state_is_plain_json_with_ids_only():
    packer = StreamPacker(8, most_open=2)
    packer.add("a", 5)
    packer.add("b", 2)
    assert json.loads(packer.state().model_dump_json()) == {
        "version": 1,
        "capacity": 8,
        "most_open": 2,
        "consumed": 2,
        "opened": 1,
        "closed": 0,
        "open_rows": [{"number": 0, "space": 1, "documents": ["a", "b"]}],
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [({"version": 2}, "expected 1, found 2"), ({"closed": 1}, "The state is damaged")],
)
def test_state_that_does_not_add_up_is_refused(change, message):
    packer = StreamPacker(8)
    packer.add("a", 5)
    state = packer.state().model_dump(mode="json") | change
    with pytest.raises(ValueError, match=message):
        StreamState.model_validate(state)


@pytest.mark.parametrize("length", [0, 9])
def test_stream_refuses_a_length_out_of_range_and_stays_as_it_was(length):
    packer = StreamPacker(8)
    packer.add("a", 5)
    before = packer.state()
    with pytest.raises(ContractError, match="expected 1 to capacity = 8"):
        packer.add("b", length)
    assert packer.state() == before


def test_document_of_exactly_the_capacity_is_a_row_at_once():
    packer = StreamPacker(8, most_open=1)
    assert packer.add("a", 7) is None
    assert packer.add("b", 8) == ("b",)
    assert packer.add("c", 1) == ("a", "c")
    assert list(packer.finish()) == []


@pytest.mark.parametrize("capacity", [4096, 32768, 131072])
def test_stream_reaches_997_of_the_bound_on_lognormal_lengths(capacity):
    lengths = problems.lengths_of("lognormal", 100_000, capacity)
    rows = plan_stream(lengths, capacity, most_open=512).num_rows
    assert lower_bound(np.bincount(lengths), capacity) >= 0.997 * rows


@given(streams())
@settings(deadline=None)
def test_compiled_stream_plan_equals_numpy_plan_bit_for_bit(stream):
    lengths, capacity, most_open = stream
    plans = [
        plan_stream(lengths, capacity, most_open=most_open, backend=backend)
        for backend in (Backend.NUMPY, Backend.COMPILED)
    ]
    assert same_plan(*plans)
