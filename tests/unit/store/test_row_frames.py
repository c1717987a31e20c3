import dataclasses
import re

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ContractError, DataError
from megapack.layout.pack_layout import PackLayout
from megapack.records.packed_row import PackedRow
from megapack.store.row_frames import frame_to_rows, rows_to_frame
from megapack.store.row_table import RowTable
from megapack.store.schema import SCHEMAS, SchemaId
from megapack.store.token_planes import token_lists
from tests.support.store_rows import INFO, make_row, same_row


def test_rows_to_frame_literal():
    frame = rows_to_frame([make_row(7)], info=INFO)
    assert frame.schema == SCHEMAS[SchemaId.PACKED_ROWS]
    record = frame.row(0, named=True)
    assert record.pop("tokens_high") == b"\0" * 8  # 4 planes of 12 bits
    assert np.frombuffer(record.pop("tokens"), dtype="<u2").tolist() == [
        7, 2, 3, 4, 5, 0, 0, 0, 1, 2, 3, 0,
    ]  # fmt: skip
    assert record == {
        "target_runs": [1, 3],
        "final_label": None,
        "lengths": [5, 3],
        "document_ids": ["7-0", "7-1"],
        "sources": ["s", "s"],
        "num_real_tokens": 8,
        "num_target_tokens": 2,
        "cost": 15 + 6,
    }


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(1, 4), max_size=4), max_size=5))
def test_rows_round_trip(all_lengths):
    rows = [make_row(i, lengths=lengths) for i, lengths in enumerate(all_lengths) if lengths]
    rows.append(
        PackedRow(
            tokens=np.zeros(16),
            target_runs=np.array([]),
            layout=PackLayout(row_length=16, lengths=np.array([]), granularity=INFO.granularity),
            document_ids=(),
        )
    )
    back = list(frame_to_rows(rows_to_frame(rows, info=INFO), info=INFO, where="x"))
    assert len(back) == len(rows)
    assert all(same_row(left, right) for left, right in zip(back, rows, strict=True))


def test_row_of_a_document_one_longer_than_the_row_keeps_its_final_label():
    layout = PackLayout(row_length=16, lengths=np.array([16]), granularity=INFO.granularity)
    row = PackedRow(
        tokens=np.arange(1, 17),
        target_runs=np.array([14, 16]),
        layout=layout,
        document_ids=("d",),
        sources=("s",),
        final_label=99,
    )
    back = next(frame_to_rows(rows_to_frame([row], info=INFO), info=INFO, where="x"))
    assert back.final_label == 99
    assert back.labels()[-2:].tolist() == [16, 99]


def test_token_lists_answers_queries():
    frame = rows_to_frame([make_row(7), make_row(8)], info=INFO)
    lists = token_lists(frame)
    assert lists.list.contains(8).to_list() == [False, True]
    assert lists.to_list()[0] == [7, 2, 3, 4, 5, 0, 0, 0, 1, 2, 3, 0]


def test_row_with_other_multiples_is_refused():
    info = INFO.model_copy(update={"segment_granularity": 2})
    with pytest.raises(ContractError, match="multiples 2, 4; found 16 and 4, 4"):
        rows_to_frame([make_row(1)], info=info)


def test_tail_without_pad_id_is_refused():
    info = INFO.model_copy(update={"pad_id": 3})
    with pytest.raises(ContractError, match="pad_id 3 in the tail"):
        rows_to_frame([make_row(1)], info=info)


def test_damaged_row_names_its_place():
    frame = rows_to_frame([make_row(1), make_row(2)], info=INFO)
    short = frame.with_columns(
        pl.when(pl.int_range(pl.len()) == 1)
        .then(pl.lit(b"1234"))
        .otherwise("tokens")
        .alias("tokens")
    )
    with pytest.raises(DataError, match=r"part-a, row 1: .*expected 12, .*found 2"):
        list(frame_to_rows(short, info=INFO, where="part-a"))


def test_frame_of_another_schema_is_refused():
    with pytest.raises(ContractError, match="lengths: absent instead of"):
        list(frame_to_rows(pl.DataFrame({"tokens": [b""]}), info=INFO, where="x"))


def test_same_row_sees_a_difference():
    assert not same_row(make_row(1), dataclasses.replace(make_row(1), sources=("s", "z")))


_DAMAGES = {
    "lengths that overflow the row": ({"lengths": [9, 9]}, "slots of 2 segments cover 24"),
    "a length of 0": ({"lengths": [0, 3]}, "expected at least 1"),
    "fewer ids than segments": ({"document_ids": ["7-0"]}, "document_ids: expected 2"),
    "more sources than segments": ({"sources": ["s"] * 3}, "sources: expected 2"),
    "a run over a document's end": ({"target_runs": [3, 5]}, "position 4 counts"),
    "a run on slot padding": ({"target_runs": [5, 7]}, "position 5 counts"),
    "a run on the tail": ({"target_runs": [12, 13]}, "position 12 counts"),
    "runs that fall": ({"target_runs": [2, 3, 1, 2]}, "strictly increasing"),
    "an odd number of edges": ({"target_runs": [1]}, "expected int32 [2R]"),
    "a run past the row": ({"target_runs": [1, 99]}, "runs inside [0, 16]"),
    "a negative run": ({"target_runs": [-2, 1]}, "runs inside [0, 16]"),
    "tokens that lack one": ({"tokens": b"1" * 22}, "expected 12, the sum of the slots, found 11"),
}


@pytest.mark.parametrize("name", _DAMAGES)
def test_damage_to_one_row_is_named_and_leaves_the_others_readable(name):
    changed, message = _DAMAGES[name]
    records = rows_to_frame([make_row(i) for i in (6, 7, 8)], info=INFO).to_dicts()
    records[1] |= changed
    frame = pl.DataFrame(records, schema=SCHEMAS[SchemaId.PACKED_ROWS])
    table = RowTable(frame, info=INFO, where="part-a")
    assert same_row(table.row(0), make_row(6))
    assert same_row(table.row(2), make_row(8))
    with pytest.raises(DataError, match=rf"part-a, row 1: .*{re.escape(message)}"):
        table.row(1)


@pytest.mark.parametrize("final_label", [None, 99])
def test_run_to_the_rows_end_needs_a_final_label(final_label):
    record = {
        **rows_to_frame([make_row(1, lengths=[16])], info=INFO).to_dicts()[0],
        "target_runs": [14, 16],
        "final_label": final_label,
    }
    table = RowTable(
        pl.DataFrame([record], schema=SCHEMAS[SchemaId.PACKED_ROWS]), info=INFO, where="x"
    )
    if final_label is None:
        with pytest.raises(DataError, match="position 15 counts"):
            table.row(0)
    else:
        assert table.row(0).labels()[-2:].tolist() == [16, 99]


def test_row_that_was_joined_for_a_microbatch_is_not_stored():
    row = dataclasses.replace(make_row(7), inner_labels=((4, 9),))
    with pytest.raises(ContractError, match="expected no inner_labels in a stored row, found 1"):
        rows_to_frame([row], info=INFO)
