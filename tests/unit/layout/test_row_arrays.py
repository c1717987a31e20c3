import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ContractError
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import IGNORE_INDEX, PackLayout
from megapack.layout.row_arrays import RowArrays
from megapack.layout.runs import runs_of_mask

_MULTIPLES = Granularity(segment=4, row=8)
_LENGTH = 64


@st.composite
def _rows(draw):
    """A layout, tokens and a mask that counts no last position of a document."""
    lengths = draw(st.lists(st.integers(1, 15), max_size=4))
    layout = PackLayout(row_length=_LENGTH, lengths=lengths, granularity=_MULTIPLES)
    counted = np.zeros(_LENGTH, dtype=np.bool_)
    tokens = np.zeros(_LENGTH, dtype=np.int32)
    for start, length in zip(layout.slot_starts.tolist(), lengths, strict=True):
        tokens[start : start + length] = draw(
            st.lists(st.integers(0, 200_000), min_size=length, max_size=length)
        )
        counted[start : start + length - 1] = draw(
            st.lists(st.booleans(), min_size=length - 1, max_size=length - 1)
        )
    return layout, tokens, counted


@settings(deadline=None)
@given(st.lists(_rows(), min_size=1, max_size=3))
def test_reused_arrays_hold_what_a_loop_says(rows):
    arrays = RowArrays.empty(_LENGTH)
    for layout, tokens, counted in rows:
        arrays.fill(layout, tokens, runs_of_mask(counted))
        labels = [
            int(tokens[t + 1]) if counted[t] else IGNORE_INDEX for t in range(_LENGTH - 1)
        ] + [IGNORE_INDEX]
        starts = [*layout.slot_starts.tolist(), layout.num_slot_tokens]
        positions = [t - max(start for start in starts if start <= t) for t in range(_LENGTH)]
        assert arrays.tokens.tolist() == tokens.tolist()
        assert arrays.labels.tolist() == labels
        assert arrays.loss_mask.tolist() == counted.astype(int).tolist()
        assert arrays.position_ids.tolist() == positions
        assert arrays.cu_seqlens.tolist() == [0, *np.cumsum(layout.lengths).tolist()]
        assert arrays.cu_seqlens_padded.tolist()[-1] == layout.num_slot_tokens
        # The wide forms come from the same functions.
        assert layout.labels(tokens, runs_of_mask(counted)).tolist() == labels
        assert layout.position_ids().tolist() == positions
        names = ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens")
        assert [getattr(arrays, name).dtype.name for name in names] == [
            "int32", "int32", "uint8", "int32", "int32",
        ]  # fmt: skip


def test_final_label_stands_at_the_last_position():
    layout = PackLayout(row_length=8, lengths=[8], granularity=_MULTIPLES)
    tokens = np.arange(8, dtype=np.int32)
    arrays = RowArrays.empty(8)
    arrays.fill(layout, tokens, np.array([6, 8], dtype=np.int32), final_label=9)
    assert arrays.labels.tolist()[-3:] == [IGNORE_INDEX, 7, 9]
    assert arrays.loss_mask.tolist()[-3:] == [0, 1, 1]


def test_arrays_of_another_length_are_refused():
    layout = PackLayout(row_length=8, lengths=[3], granularity=_MULTIPLES)
    with pytest.raises(ContractError, match="row of 16 positions, found one of 8"):
        RowArrays.empty(16).fill(layout, np.zeros(8, np.int32), np.zeros(0, np.int32))
