"""What MTP layers see of a row at cp 2: shifted inside documents, before the row is cut."""

import numpy as np
import pytest

from megapack.batch.mtp import mtp_target_counts, mtp_views
from megapack.layout.granularity import Granularity, ParallelSizes
from megapack.layout.pack_layout import IGNORE_INDEX
from megapack.parallel.context import ParallelContext
from tests.support.microbatches import microbatch
from tests.support.rows import make_row

FOURS = Granularity(segment=4, row=4)
CP2 = ParallelSizes(cp=2)
# Documents of odd lengths in slots from 0 and 4, then a tail.
STARTS, LENGTHS = (0, 4), (3, 7)
ROW = make_row(list(LENGTHS), seed=1, row_length=16, supervised=1.0, granularity=FOURS)


def seen(position: int, depth: int) -> tuple[int, bool, int]:
    """(token, is padding, label) of a position, looked up in its document."""
    for start, length in zip(STARTS, LENGTHS, strict=True):
        tokens = ROW.tokens[start : start + length].tolist()
        at = position - start + depth
        if start <= position < start + length and at < length:
            return tokens[at], False, tokens[at + 1] if at + 1 < length else IGNORE_INDEX
    return 0, True, IGNORE_INDEX


@pytest.mark.parametrize("rank", [0, 1])
def test_layers_at_cp2_see_later_tokens_of_the_own_document_only(rank: int) -> None:
    batch = microbatch(ROW, ParallelContext.fake(CP2, cp_rank=rank))
    for depth, view in enumerate(mtp_views(batch, depths=3), start=1):
        expected = [seen(position, depth) for position in batch.attention.cp_index.tolist()]
        found = zip(
            view.tokens[0].tolist(),
            view.padding_mask[0].tolist(),
            view.labels[0].tolist(),
            strict=True,
        )
        assert list(found) == expected


def test_divisor_of_each_layer_is_the_number_of_its_labels_over_all_ranks() -> None:
    rows = [
        make_row([3, 7, 5], seed=2, row_length=32, supervised=1.0, granularity=FOURS),
        make_row([9, 1, 4], seed=3, row_length=32, supervised=0.5, granularity=FOURS),
    ]
    labels = np.zeros(3, dtype=np.int64)
    for row in rows:
        for rank in range(2):
            views = mtp_views(microbatch(row, ParallelContext.fake(CP2, cp_rank=rank)), depths=3)
            labels += [int((view.labels != IGNORE_INDEX).sum()) for view in views]
    assert mtp_target_counts(rows, ParallelContext.single(), depths=3) == labels.tolist()
    assert labels[0] > labels[1] > labels[2] > 0
