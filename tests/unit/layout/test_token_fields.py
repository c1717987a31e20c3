"""Shifting values inside documents: never across a boundary, whatever the slots."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import PackLayout
from megapack.layout.token_fields import shift_left, unplace


def layout(lengths, segment, tail=0):
    slots = sum(-(-length // segment) * segment for length in lengths)
    return PackLayout(
        row_length=slots + tail * segment,
        lengths=np.array(lengths, np.int32),
        granularity=Granularity(segment=segment, row=segment),
    )


def test_shift_left_of_two_documents_in_slots_of_four():
    row = np.array([1, 2, 3, 9, 5, 6, 7, 8])
    shifted = shift_left(row, layout([3, 4], 4), by=1, fill=-1)
    assert shifted.tolist() == [2, 3, -1, -1, 6, 7, 8, -1]


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    segment=st.sampled_from([1, 2, 4]),
    by=st.integers(1, 4),
    tail=st.integers(0, 2),
)
def test_shift_left_is_that_of_each_document_alone(lengths, segment, by, tail):
    geometry = layout(lengths, segment, tail)
    values = np.arange(geometry.row_length) + 1
    shifted = shift_left(values, geometry, by=by, fill=0)
    for before, after in zip(unplace(values, geometry), unplace(shifted, geometry), strict=True):
        kept = before[by:]
        assert after.tolist() == kept.tolist() + [0] * (len(before) - len(kept))
    assert not shifted[geometry.padding_mask()].any()
