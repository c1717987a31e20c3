import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.store.ragged import flat_of, list_series, lists_of, offsets_of


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
