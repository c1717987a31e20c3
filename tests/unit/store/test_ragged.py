import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ContractError
from megapack.layout.pack_layout import PackLayout
from megapack.store.manifest import Part, PartKind
from megapack.store.ragged import flat_of, list_series, lists_of, offsets_of
from megapack.store.row_frames import attention_cost
from megapack.store.schema import PackedInfo
from megapack.store.sinks import row_counts
from tests.support.store_rows import INFO


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=8))
def test_list_series_and_lists_of_are_inverse(values):
    arrays = [np.array(one, dtype=np.int32) for one in values]
    column = list_series("x", arrays)
    assert column.dtype == pl.List(pl.Int32)
    assert column.null_count() == 0
    assert column.to_list() == values
    assert [one.tolist() for one in lists_of(column)] == values


def test_offsets_beyond_32_bits_do_not_wrap():
    offsets = offsets_of(np.full(3, 2**31 - 1, dtype=np.int32))
    assert offsets.tolist() == [0, 2147483647, 4294967294, 6442450941]
    assert offsets.dtype == np.int64


def test_flat_of_empty_column():
    values, offsets = flat_of(pl.Series("x", [], dtype=pl.List(pl.Int32)))
    assert values.tolist() == []
    assert offsets.tolist() == [0]


def test_counts_of_parts_add_up_beyond_32_bits():
    part = Part(
        key="parts/x",
        size=1,
        sha256="0" * 64,
        num_records=2**31,
        kind=PartKind.ROWS,
        counts={"num_real_tokens": 2**33, "num_target_tokens": 2**32},
    )
    assert row_counts([part, part]) == {
        "num_rows": 2**32,
        "num_real_tokens": 2**34,
        "num_target_tokens": 2**33,
    }
    assert attention_cost([2**21]) == 2**21 * (2**21 + 1) // 2


def test_row_that_32_bit_offsets_cannot_address_is_refused():
    with pytest.raises(ContractError, match=r"2147483648, .* offsets of 32 bits can address"):
        PackLayout(row_length=2**31, lengths=[1], granularity=INFO.granularity)
    with pytest.raises(ValueError, match="less than or equal to 2147483647"):
        PackedInfo(**(INFO.model_dump() | {"row_length": 2**31}))
