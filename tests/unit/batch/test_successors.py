"""Values of the next position: of the own document only, wherever cp has put it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from megapack.batch.successors import Successors
from megapack.layout.granularity import Granularity, ParallelSizes
from megapack.layout.pack_layout import PackLayout
from megapack.parallel.context import ParallelContext
from tests.support.microbatches import microbatch
from tests.support.rows import make_row

LENGTHS = [5, 17, 1, 23, 2]


def next_of(layout: PackLayout) -> list[float]:
    """For each row position the number of the next one, 0 where there is none."""
    found = [0.0] * layout.row_length
    for start, length in zip(layout.slot_starts.tolist(), layout.lengths.tolist(), strict=True):
        for position in range(start, start + length - 1):
            found[position] = position + 1.0
    return found


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_every_rank_gets_the_next_position_of_the_own_document(
    cp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    granularity = Granularity(segment=8, row=16)
    row = make_row(LENGTHS, seed=1, row_length=128, granularity=granularity)
    contexts = [ParallelContext.fake(ParallelSizes(cp=cp), cp_rank=rank) for rank in range(cp)]
    ranks = [Successors.of(microbatch(row, one), one) for one in contexts]
    # The value of a position is its number, beside its negative.
    numbers = [
        torch.from_numpy(row.layout.cp_index(cp_size=cp, cp_rank=rank)).double()
        for rank in range(cp)
    ]
    values = [torch.stack((one, -one), dim=-1) for one in numbers]
    sent = [held[rank.shared] for rank, held in zip(ranks, values, strict=True)]
    # Two chunks a slot and two of the tail; the row itself is never shared.
    (shared,) = {len(one) for one in sent}
    assert shared <= (0 if cp == 1 else 2 * (len(LENGTHS) + 1))

    def gather(into: torch.Tensor, mine: torch.Tensor, **_: object) -> None:
        assert any(torch.equal(mine, one) for one in sent)
        into.copy_(torch.cat(sent))

    monkeypatch.setattr("torch.distributed.all_gather_into_tensor", gather)
    expected = np.array(next_of(row.layout))
    for rank, held, number in zip(ranks, values, numbers, strict=True):
        # Any group: the collective is the one above.
        linked = replace(rank, context=replace(rank.context, cp_group="cp"))  # type: ignore[arg-type]
        found = linked(held)
        assert np.array_equal(found[:, 0].numpy(), expected[number.long().numpy()])
        assert torch.equal(found[:, 1], -found[:, 0])
