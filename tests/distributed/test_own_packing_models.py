"""Models that pack, or cut, by themselves: the loss side agrees with them at any layout."""

from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import Granularity, ParallelSizes
from tests.support.ranks import RankServer
from tests.support.rows import make_row, worst_error
from tests.support.unequal_rows import ragged_rows

ROWS = ragged_rows()
WIDTH = 32
MEDIA = "media_token_validity_mask"
LAYOUTS = [
    ParallelSizes(tp=2, cp=2, sequence_parallel=True),
    ParallelSizes(cp=2, pp=2),
]


def packed(*, rows: list[Any]) -> Any:
    from tests.support.tiny_training import train_step

    return train_step(sizes=ParallelSizes(), rows=rows)


def self_packed(*, sizes: ParallelSizes, row_length: int | None) -> Any:
    from megapack.batch.documents import documents_of
    from megapack.batch.iterate import step_of_groups
    from megapack.batch.recipe import BatchKind, BatchRecipe
    from tests.support.self_packing_model import SelfPackingGPT
    from tests.support.tiny_training import train_step

    align = sizes.tp * (2 * sizes.cp if sizes.cp > 1 else 1)

    def make(rows: list[Any], context: Any) -> Any:
        recipe = BatchRecipe(
            kind=BatchKind.SELF_PACKED,
            granularity=Granularity(segment=align, row=align),
            row_length=row_length,
        )
        mine = rows[context.dp_rank :: sizes.dp]
        return step_of_groups([documents_of([row]) for row in mine], recipe, context)

    return train_step(sizes=sizes, rows=ROWS, make=make, model_class=SelfPackingGPT)


@pytest.fixture(scope="module")
def expected(ranks: RankServer) -> Any:
    """One process, packed rows."""
    return ranks.run(packed, rows=ROWS)[0]


@pytest.fixture(scope="module")
def expected_media(ranks: RankServer) -> Any:
    """One process, whole rows."""
    return ranks.run(with_media, sizes=ParallelSizes())[0]


@pytest.mark.parametrize(
    ("sizes", "row_length"),
    [(ParallelSizes(), None), (ParallelSizes(dp=2), None), *((one, 128) for one in LAYOUTS)],
    ids=["one", "dp2-filler", "tp2-sp-cp2-fixed", "cp2-pp2-fixed"],
)
def test_self_packing_model_equals_packed_rows(
    ranks: RankServer, expected: Any, sizes: ParallelSizes, row_length: int | None
) -> None:
    got = ranks.run(self_packed, world_size=sizes.world_size, sizes=sizes, row_length=row_length)[0]
    assert got.num_target_tokens == expected.num_target_tokens
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
    assert worst_error(got.gradients, expected.gradients) < 1e-12


def media_rows() -> list[Any]:
    return [make_row([5, 17, 3, 23], seed=0), make_row([30, 9], seed=1)]


def media_positions(row: Any) -> Any:
    """Real positions, off the chunk borders, whose own token is nobody's label."""
    labelled = np.flatnonzero(row.loss_mask()) + 1
    free = np.setdiff1d(np.flatnonzero(~row.layout.padding_mask()), labelled)
    return free[::2]


def with_media(*, sizes: ParallelSizes, replaced: dict[str, Any] | None = None) -> Any:
    """Features at media positions: random ones, or the embeddings of other tokens."""
    import torch

    from megapack.batch.fields import AttachFields, RowFields
    from megapack.batch.iterate import StepBatch
    from megapack.batch.recipe import BatchKind
    from tests.support.self_packing_model import MediaGPT
    from tests.support.tiny_training import packed_step, start, train_step

    table = None
    if replaced is not None:
        context, chunks, _ = start(ParallelSizes(), dtype=torch.float64)
        table = chunks[0].embedding.word_embeddings.weight.detach().clone()
        context.destroy()

    def fields(row: Any) -> Any:
        valid = np.zeros(row.layout.row_length, bool)
        if not row.document_ids:
            return RowFields(model={MEDIA: valid})
        places = media_positions(row)
        valid[places] = True
        features = np.random.default_rng(places.size).standard_normal((places.size, WIDTH))
        media = torch.from_numpy(features)
        if table is not None:
            media = table[torch.from_numpy(replaced[row.document_ids[0]]).long()]
        return RowFields(
            local={"identity": np.arange(row.layout.row_length)},
            model={MEDIA: valid},
            media={"media_features": media},
        )

    def make(rows: list[Any], context: Any) -> Any:
        plain = packed_step(rows, context)
        return StepBatch(
            rows=plain.rows,
            context=context,
            row_length=plain.row_length,
            normalizer=plain.normalizer,
            kind=BatchKind.FULL_ROW,
            stages=(AttachFields(source=fields),),
        )

    return train_step(sizes=sizes, rows=media_rows(), make=make, model_class=MediaGPT)


def test_features_of_other_tokens_equal_a_packed_row_with_those_tokens(ranks: RankServer) -> None:
    from megapack.records.packed_row import PackedRow

    draw, others, replaced = np.random.default_rng(3), [], {}
    for row in media_rows():
        tokens, places = row.tokens.copy(), media_positions(row)
        tokens[places] = replaced[row.document_ids[0]] = draw.integers(0, 101, places.size)
        others.append(
            PackedRow(
                tokens=tokens,
                target_runs=row.target_runs,
                layout=row.layout,
                document_ids=row.document_ids,
            )
        )
    expected = ranks.run(packed, rows=others)[0]
    got = ranks.run(with_media, sizes=ParallelSizes(), replaced=replaced)[0]
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
    # Features are no parameters, so the embedding's own gradient is another.
    name = "embedding.word_embeddings.weight"
    assert not np.allclose(got.gradients.pop(name), expected.gradients.pop(name))
    assert worst_error(got.gradients, expected.gradients) < 1e-12


@pytest.mark.parametrize("sizes", LAYOUTS, ids=["tp2-sp-cp2", "cp2-pp2"])
def test_model_that_inserts_media_and_cuts_equals_one_process(
    ranks: RankServer, expected_media: Any, sizes: ParallelSizes
) -> None:
    got = ranks.run(with_media, world_size=sizes.world_size, sizes=sizes)[0]
    assert got.loss_sum == pytest.approx(expected_media.loss_sum, rel=1e-12)
    assert worst_error(got.gradients, expected_media.gradients) < 1e-12
