"""Padding that only a run needs (a constant length, a kernel's multiple, a rectangle) stays in it.

What comes out of heads is what came out without it: as many values as the document has positions.
"""

from typing import Any

import numpy as np
import pytest

from megapack.batch.recipe import BatchKind
from megapack.layout.granularity import Granularity, ParallelSizes
from tests.support.ranks import RankServer
from tests.support.unequal_rows import ragged_rows

ROWS = ragged_rows()


def records(
    *, sizes: ParallelSizes, kind: BatchKind, granularity: Granularity, length: int | None
) -> Any:
    from megapack.batch.documents import documents_of
    from megapack.batch.iterate import step_of_groups
    from megapack.batch.recipe import BatchRecipe
    from megapack.outputs.teacher import PayloadHead
    from megapack.records.payload import PayloadDtype, PayloadKind
    from tests.support.tiny_training import collect_records

    def make(rows: list[Any], context: Any) -> Any:
        recipe = BatchRecipe(kind=kind, granularity=granularity, row_length=length)
        mine = rows[context.dp_rank :: sizes.dp]
        return step_of_groups([documents_of([row]) for row in mine], recipe, context)

    found = collect_records(
        sizes=sizes,
        rows=ROWS,
        head=PayloadHead(kinds=((PayloadKind.HIDDEN, PayloadDtype.FP32),)),
        dtype="float64",
        make=make,
    )
    return {one.document_id: (one.values, one.target_logprobs) for one in found}


@pytest.mark.parametrize(
    ("sizes", "kind", "granularity", "length"),
    [
        (ParallelSizes(pp=2), BatchKind.PACKED, Granularity(segment=16, row=128), 512),
        (
            ParallelSizes(tp=2, sequence_parallel=True),
            BatchKind.DENSE,
            Granularity(segment=1, row=32),
            None,
        ),
    ],
    ids=["pp2-constant-length", "tp2-sp-dense"],
)
def test_padding_of_the_run_is_in_no_record(
    ranks: RankServer,
    sizes: ParallelSizes,
    kind: BatchKind,
    granularity: Granularity,
    length: int | None,
) -> None:
    tight = Granularity(segment=1, row=1)
    expected = ranks.run(
        records, sizes=ParallelSizes(), kind=BatchKind.PACKED, granularity=tight, length=None
    )[0]
    outcomes = ranks.run(
        records,
        world_size=sizes.world_size,
        sizes=sizes,
        kind=kind,
        granularity=granularity,
        length=length,
    )
    got = {key: value for outcome in outcomes for key, value in outcome.items()}
    assert got.keys() == expected.keys()
    lengths = {
        one: int(length)
        for row in ROWS
        for one, length in zip(row.document_ids, row.layout.lengths, strict=True)
    }
    for one, (hidden, logprobs) in expected.items():
        assert got[one][0].shape == hidden.shape == (lengths[one], 32)
        np.testing.assert_allclose(got[one][0], hidden, rtol=2e-7, atol=1e-7)
        np.testing.assert_allclose(got[one][1], logprobs, rtol=2e-7, atol=1e-7)
