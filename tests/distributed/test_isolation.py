"""Law 2: a document's loss, outputs and gradients do not depend on its neighbours in the row."""

from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankServer
from tests.support.rows import make_row, one_document, replace_token, worst_error

LENGTHS = [[5, 17, 3, 23], [23, 3, 17, 5], [1, 2, 1, 9, 33], [7, 7, 7]]


def packed_and_alone(*, lengths: list[int]) -> Any:
    from tests.support.tiny_training import train_step

    row = make_row(lengths, seed=4, row_length=112)
    packed = train_step(sizes=ParallelSizes(), rows=[row])
    alone = [
        train_step(sizes=ParallelSizes(), rows=[one_document(row, i)]) for i in range(len(lengths))
    ]
    return packed, alone


def outputs(*, sizes: ParallelSizes, position: int | None) -> Any:
    from megapack.outputs.teacher import TeacherPayloadHead
    from megapack.records.payload import PayloadDtype
    from tests.support.tiny_training import collect_records

    row = make_row([9, 17, 3, 23], seed=5)
    rows = [row if position is None else replace_token(row, position)]
    return collect_records(sizes=sizes, rows=rows, head=TeacherPayloadHead(dtype=PayloadDtype.FP32))


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_packed_loss_and_gradients_are_sums_of_documents_alone(
    ranks: RankServer, lengths: list[int]
) -> None:
    packed, alone = ranks.run(packed_and_alone, lengths=lengths)[0]
    assert packed.num_target_tokens == sum(one.num_target_tokens for one in alone)
    assert packed.loss_sum == pytest.approx(sum(one.loss_sum for one in alone), rel=1e-12)
    summed = {
        name: sum(one.gradients[name] * one.num_target_tokens for one in alone)
        for name in packed.gradients
    }
    # finalize_model_grads divides by a float32 count, which costs 1e-7.
    scaled = {
        name: gradient * packed.num_target_tokens for name, gradient in packed.gradients.items()
    }
    assert worst_error(scaled, summed) < 3e-7


@pytest.mark.parametrize("cp", [1, 2])
def test_outputs_of_neighbours_stay_bitwise_when_one_token_changes(
    ranks: RankServer, cp: int
) -> None:
    sizes = ParallelSizes(cp=cp)
    before = ranks.run(outputs, world_size=cp, sizes=sizes, position=None)[0]
    changed = 16 + 4
    after = ranks.run(outputs, world_size=cp, sizes=sizes, position=changed)[0]
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        same = np.array_equal(old.values, new.values)
        assert same == (i != 1)
    earlier = slice(0, 4)
    assert np.array_equal(before[1].values[earlier], after[1].values[earlier])
    assert not np.array_equal(before[1].values[4:], after[1].values[4:])
