"""Geometry of the tail, filler rows, step counts: no megatron-core needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megapack.batch.iterate import filler_row, step_batch
from megapack.errors import ContractError
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import PackLayout
from megapack.layout.tail import tail_segments
from megapack.parallel.context import ParallelContext
from tests.support.rows import GRANULARITY, make_row

EIGHTS = Granularity(segment=8, row=8)


@given(lengths=st.lists(st.integers(1, 30), max_size=4))
def test_tail_segments_cover_the_tail_and_none_is_longer_than_the_longest_slot(
    lengths: list[int],
) -> None:
    layout = PackLayout(row_length=136, lengths=np.array(lengths, np.int32), granularity=EIGHTS)
    tail = tail_segments(layout)
    assert int(tail.sum()) == layout.tail_length
    assert (tail % 8 == 0).all()
    assert (tail > 0).all()
    assert int(tail.max(initial=0)) <= (layout.max_seqlen or layout.row_length)


def test_filler_row_holds_nothing() -> None:
    row = filler_row(row_length=16, granularity=EIGHTS)
    assert (row.num_target_tokens, row.num_real_tokens, row.document_ids) == (0, 0, ())
    assert tail_segments(row.layout).tolist() == [16]


def test_step_counts_equal_labels_that_are_not_ignored() -> None:
    rows = [make_row([5, 17, 3], seed=1), make_row([9, 2, 40], seed=2)]
    step = step_batch(
        rows, context=ParallelContext.single(), row_length=96, granularity=GRANULARITY
    )
    labels = sum(int((row.labels() != -100).sum()) for row in rows)
    assert step.normalizer.num_target_tokens == labels
    assert step.normalizer.num_documents == 6
    assert step.normalizer.num_real_tokens == 76
    assert (step.num_microbatches, step.normalizer.num_rows) == (2, 2)


def test_row_of_another_length_is_refused() -> None:
    with pytest.raises(ContractError, match="expected rows of 112 positions, found one of 96"):
        step_batch(
            [make_row([5], seed=0)],
            context=ParallelContext.single(),
            row_length=112,
            granularity=GRANULARITY,
        )
