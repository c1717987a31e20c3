import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megapack.errors import ContractError
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import IGNORE_INDEX
from megapack.layout.runs import mask_of_runs, runs_of_mask
from megapack.layout.token_fields import unplace
from megapack.packing.planner import plan_rows
from megapack.packing.rows import RowShape, build_row, build_rows, positions_of
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


def pack(docs, shape_):
    slots = (
        -(
            -positions_of([d.num_tokens for d in docs], shape_.row_length)
            // (shape_.granularity.segment)
        )
        * shape_.granularity.segment
    )
    plan = plan_rows(slots, shape_.row_length)
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


@given(st.data(), st.sampled_from([1, 4, 6]))
def test_rows_conserve_documents_and_every_target(data, segment):
    docs = data.draw(documents(row_length=12))
    plan, rows = pack(docs, shape(12, segment))
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
