import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ContractError
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import IGNORE_INDEX, padded_lengths
from megapack.layout.runs import mask_of_runs, runs_of_mask
from megapack.layout.token_fields import unplace
from megapack.packing.given import plan_as_given
from megapack.packing.planner import plan_rows
from megapack.packing.rows import RowShape, build_row, build_rows, positions_of
from megapack.packing.stream import plan_stream
from megapack.records.document import Document
from megapack.records.packed_row import PackedRow


def document(tokens, mask, name="d"):
    return Document(document_id=name, tokens=tokens, target_runs=runs_of_mask(mask))


def shape(row_length, segment=1):
    return RowShape(
        row_length=row_length, granularity=Granularity(segment=segment, row=segment), pad_id=0
    )


@st.composite
def documents(draw, row_length):
    """Documents of 1 .. row_length + 1 tokens with any mask that leaves the first token out."""
    count = draw(st.integers(1, 12))
    made = []
    for i in range(count):
        n = draw(st.integers(1, row_length + 1))
        mask = [False, *draw(st.lists(st.booleans(), min_size=n - 1, max_size=n - 1))]
        tokens = draw(st.lists(st.integers(1, 99), min_size=n, max_size=n))
        made.append(document(tokens, mask, name=f"{i:032x}"))
    return made


def slots_of(docs, shape_):
    positions = positions_of([d.num_tokens for d in docs], shape_.row_length)
    return padded_lengths(positions, shape_.granularity.segment)


def one_pass(slots, capacity):
    return plan_stream(slots, capacity, most_open=2)


def one_record_each(slots, capacity):
    return plan_as_given(np.arange(len(slots)), slots, capacity).plan


def pack(docs, shape_, planner=plan_rows):
    plan = planner(slots_of(docs, shape_), shape_.row_length)
    return plan, list(build_rows(plan, docs, shape_))


def test_build_row_shifts_inside_each_segment():
    # <u> hi <a> one two <eot>: supervised one, two, <eot>; then a second document of three tokens
    first = document([3, 10, 4, 11, 12, 5], [0, 0, 0, 1, 1, 1])
    second = document([3, 13, 5], [0, 1, 1])
    row = build_row([first, second], shape(12, segment=4))
    ignore = IGNORE_INDEX
    assert row.tokens.tolist() == [3, 10, 4, 11, 12, 5, 0, 0, 3, 13, 5, 0]
    assert row.labels().tolist() == [
        *[ignore, ignore, 11, 12, 5, ignore, ignore, ignore],
        *[13, 5, ignore, ignore],
    ]
    assert row.num_target_tokens == 5


def test_build_row_document_one_longer_than_row_keeps_last_label():
    row = build_row([document([1, 2, 3, 4, 5], [0, 1, 1, 1, 1])], shape(4))
    assert row.labels().tolist() == [2, 3, 4, 5]
    assert row.final_label == 5


def test_build_row_document_one_longer_with_unsupervised_end_has_no_final_label():
    row = build_row([document([1, 2, 3, 4, 5], [0, 1, 1, 1, 0])], shape(4))
    assert row.labels().tolist() == [2, 3, 4, IGNORE_INDEX]
    assert row.final_label is None


def test_build_row_refuses_longer_document():
    with pytest.raises(ContractError, match=r"6 tokens, expected at most row_length \+ 1 = 5"):
        build_row([document([1] * 6, [0] * 6)], shape(4))


PLANNERS = st.sampled_from([plan_rows, one_pass, one_record_each])


@given(st.data(), st.sampled_from([1, 4, 6]), PLANNERS)
@settings(deadline=None)
def test_rows_conserve_documents_and_every_target(data, segment, planner):
    docs = data.draw(documents(row_length=12))
    plan, rows = pack(docs, shape(12, segment), planner)
    placed = [name for row in rows for name in row.document_ids]
    assert sorted(placed) == sorted(d.document_id for d in docs)
    assert sum(r.num_target_tokens for r in rows) == sum(d.num_target_tokens for d in docs)
    assert sum(r.num_real_tokens for r in rows) == sum(min(d.num_tokens, 12) for d in docs)
    for index, row in enumerate(rows):
        labels = unplace(row.labels(), row.layout)
        tokens = unplace(row.tokens, row.layout)
        for i, own in zip(plan.row(index), range(row.layout.num_segments), strict=True):
            expected = [
                int(docs[i].tokens[t + 1])
                if t + 1 < docs[i].num_tokens
                and mask_of_runs(docs[i].target_runs, docs[i].num_tokens)[t + 1]
                else IGNORE_INDEX
                for t in range(min(docs[i].num_tokens, 12))
            ]
            assert labels[own].tolist() == expected
            assert docs[i].labels(len(expected)).tolist() == expected or row.final_label
            assert tokens[own].tolist() == docs[i].tokens[: len(expected)].tolist()


@given(st.data(), st.sampled_from([1, 4, 6]), PLANNERS)
@settings(deadline=None)
def test_rows_have_the_slots_that_were_planned(data, segment, planner):
    docs = data.draw(documents(row_length=12))
    planned = slots_of(docs, shape(12, segment))
    plan, rows = pack(docs, shape(12, segment), planner)
    for index, row in enumerate(rows):
        slots = planned[plan.row(index)]
        assert row.layout.padded_lengths.tolist() == slots.tolist()
        assert (slots % segment == 0).all()
        assert int(slots.sum()) + row.layout.tail_length == row.layout.row_length


def test_positions_restart_in_each_slot_and_run_on_through_its_padding():
    docs = [document([1] * 5, [0] * 5), document([1] * 3, [0] * 3)]
    layout = build_row(docs, shape(16, segment=4)).layout
    assert layout.position_ids().size == 16
    assert layout.position_ids()[:12].tolist() == [*range(8), *range(4)]


def test_padding_makes_no_documents():
    row = build_row([document([1] * 5, [0] * 5)], shape(4101))
    assert row.layout.num_segments == 1
    assert row.layout.padding_mask().sum() == 4096
    assert row.layout.cu_seqlens.tolist() == [0, 5]


def test_document_of_row_length_and_one_more_fit_and_two_more_does_not():
    docs = [document([1] * n, [0] * n, name=f"{n:032x}") for n in (7, 16, 17, 1)]
    _, rows = pack(docs, shape(16))
    assert [[int(i, 16) for i in row.document_ids] for row in rows] == [[16], [17], [7, 1]]
    with pytest.raises(ContractError, match="18 tokens, expected at most"):
        build_row([document([1] * 18, [0] * 18)], shape(16))


def test_masks_follow_position_when_pad_eos_and_unk_coincide():
    row = build_row([document([0, 0, 0], [0, 1, 1])], shape(4))
    assert row.labels().tolist() == [0, 0, IGNORE_INDEX, IGNORE_INDEX]


@pytest.mark.parametrize("runs", [[2, 3], [3, 4]])
def test_packed_row_refuses_label_at_boundary_or_padding(runs):
    row = build_row([document([1, 2, 3], [0, 0, 0])], shape(4))
    with pytest.raises(ContractError, match="padding or the last position of a segment"):
        PackedRow(
            tokens=row.tokens,
            target_runs=np.array(runs, np.int32),
            layout=row.layout,
            document_ids=row.document_ids,
        )


@given(st.data())
@settings(deadline=None)
def test_packed_row_accepts_exactly_the_positions_with_a_next_token(data):
    lengths = data.draw(st.lists(st.integers(1, 9), max_size=3))
    shape_ = shape(48, 4)
    docs = [document([1] * n, [0] * n, name=f"{i:032x}") for i, n in enumerate(lengths)]
    row = build_row(docs, shape_)
    start = data.draw(st.integers(0, 47))
    end = data.draw(st.integers(start + 1, 48))
    real = ~row.layout.padding_mask()
    segments = row.layout.segment_ids()
    allowed = [
        real[t] and t + 1 < 48 and real[t + 1] and segments[t] == segments[t + 1] for t in range(48)
    ]
    made = {
        "tokens": row.tokens,
        "target_runs": np.array([start, end], np.int32),
        "layout": row.layout,
        "document_ids": row.document_ids,
    }
    if all(allowed[start:end]):
        assert PackedRow(**made).num_target_tokens == end - start
    else:
        with pytest.raises(ContractError, match="counts, but it is padding"):
            PackedRow(**made)
