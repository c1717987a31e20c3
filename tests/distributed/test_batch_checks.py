"""Checks of microbatches that need megatron-core but no other rank: run on one, many in a world."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from megapack.batch.documents import documents_of
from megapack.batch.fields import RowFields, by_document, carry
from megapack.batch.join import join_rows
from megapack.batch.recipe import BatchKind, BatchRecipe, build_microbatch, lay_documents
from megapack.batch.runtime_packing import pack_documents
from megapack.batch.self_packing import grow_last
from megapack.errors import ContractError
from megapack.layout.granularity import Granularity, ParallelSizes, granularity
from megapack.layout.token_fields import TokenField
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import filler_row
from tests.support.ranks import RankServer
from tests.support.rows import GRANULARITY, make_row
from tests.support.unequal_rows import ragged_rows

EOD = 1
KINDS = [BatchKind.PACKED, BatchKind.SELF_PACKED, BatchKind.FULL_ROW]


def masks_and_positions_are_megatrons_with_all_resets() -> None:
    from megatron.core.datasets.gpt_dataset import _get_ltor_masks_and_position_ids

    from megapack.batch.dense import ltor_masks_and_position_ids

    draw = np.random.default_rng(0)
    for _ in range(30):
        lengths = [draw.integers(1, 8, draw.integers(1, 5)).tolist() for _ in range(3)]
        width = max(sum(row) for row in lengths) + int(draw.integers(0, 6))
        ours = ltor_masks_and_position_ids(lengths, width)
        for i, row in enumerate(lengths):
            data = torch.zeros(width, dtype=torch.int64)
            data[np.cumsum(row) - 1] = EOD
            hidden, _, positions = _get_ltor_masks_and_position_ids(
                data,
                EOD,
                reset_position_ids=True,
                reset_attention_mask=True,
                eod_mask_loss=False,
                create_attention_mask=True,
            )
            assert torch.equal(ours.attention_mask[i], hidden)
            assert torch.equal(ours.position_ids[i], positions)
            behind = width - sum(row)
            assert ours.loss_mask[i].tolist() == [1.0] * sum(row) + [0.0] * behind


def a_field_of_any_shape_is_cut_as_tokens_and_labels_are() -> None:
    draw = np.random.default_rng(1)
    for seed in range(10):
        source = make_row(draw.integers(1, 41, draw.integers(1, 7)), seed=seed, row_length=320)
        for cp in (1, 2, 4):
            for kind in KINDS:
                check_fields(source, cp=cp, kind=kind)


def check_fields(source: Any, *, cp: int, kind: BatchKind) -> None:
    given = documents_of([source])
    needed = granularity(ParallelSizes(cp=cp))
    row = lay_documents(given, BatchRecipe(kind=kind, granularity=needed, row_length=320))
    wide = {one.document_id: np.stack([one.tokens, one.labels], 1) for one in given}
    spec = TokenField(name="both", dtype=np.int32, pad=0, trailing=(2,))
    targets = 0
    for rank in range(cp):
        context = ParallelContext.fake(ParallelSizes(cp=cp), cp_rank=rank)
        plain = build_microbatch(row, kind, context)
        values = by_document(spec, wide, plain.row)
        batch = carry(plain, RowFields(local={"both": values}, model={"both": values}))
        counted = batch.loss_mask > 0
        targets += int(counted.sum())
        assert torch.equal(batch.fields["both"][..., 1][counted].long(), batch.labels[counted])
        assert batch.inputs["both"].shape[:2] == batch.tokens.shape
        assert torch.equal(batch.inputs["both"][..., 0].long(), batch.tokens)
    assert targets == source.num_target_tokens


def joined_rows_of_two_and_five_documents_at_cp2_have_no_sentinels() -> None:
    joined = join_rows(ragged_rows()[:2])
    assert joined.layout.num_segments == 7
    for rank in range(2):
        context = ParallelContext.fake(ParallelSizes(cp=2), cp_rank=rank)
        batch = build_microbatch(joined, BatchKind.PACKED, context)
        padded = batch.attention.packed_seq_params.cu_seqlens_q_padded
        assert (int(padded[0]), int(padded[-1])) == (0, 192)
        assert (padded.diff() > 0).all()
        assert batch.tokens.shape == (1, 96)


def field_of_another_length_is_refused() -> None:
    batch = build_microbatch(make_row([5], seed=0), BatchKind.PACKED, ParallelContext.single())
    with pytest.raises(ContractError, match=r"RowFields.m: expected 96 positions, found 5"):
        carry(batch, RowFields(local={"m": np.zeros(5)}))


def last_item_grows_to_the_fixed_length_and_the_loss_masks_it() -> None:
    given_ = documents_of([make_row([5, 9], seed=3, supervised=1.0)])
    for cp, first in ((1, 5), (2, 8)):
        needed = granularity(ParallelSizes(cp=cp))
        recipe = BatchRecipe(kind=BatchKind.SELF_PACKED, granularity=needed, row_length=40)
        row = lay_documents(given_, recipe)
        shares = [
            build_microbatch(
                row, recipe.kind, ParallelContext.fake(ParallelSizes(cp=cp), cp_rank=rank)
            )
            for rank in range(cp)
        ]
        batch = shares[0]
        assert batch.tokens.shape == (2, 40 - first)
        assert batch.position_ids.tolist() == [list(range(40 - first))] * 2
        assert batch.attention.attention_mask.sum(1).tolist() == [5, 40 - first]
        assert batch.attention.packed_seq_params.cu_seqlens_q_padded.tolist() == [0, first, 40]
        assert batch.row.layout.lengths.tolist() == [5, 9]
        assert sum(float(share.loss_mask.sum()) for share in shares) == 12
        found = documents_of([batch.row])
        assert [one.tokens.tolist() for one in found] == [one.tokens.tolist() for one in given_]


def layout_without_tail_and_filler_row_do_not_grow() -> None:
    full = make_row([8, 8], seed=0, row_length=16).layout
    empty = filler_row(row_length=16, granularity=GRANULARITY)
    assert grow_last(full) is full
    assert grow_last(empty.layout) is empty.layout
    batch = build_microbatch(empty, BatchKind.SELF_PACKED, ParallelContext.single())
    assert batch.attention.attention_mask.tolist() == [[True] * 16]
    assert not batch.loss_mask.any()


def documents_shorter_than_cp_times_tp_leave_ranks_with_padding_alone() -> None:
    sizes = ParallelSizes(cp=8, tp=2, sequence_parallel=True)
    given_ = documents_of([make_row([1, 2, 15], seed=4, supervised=1.0)])
    row = pack_documents(given_, granularity(sizes))
    shares = [
        build_microbatch(row, BatchKind.PACKED, ParallelContext.fake(sizes, cp_rank=rank))
        for rank in range(8)
    ]
    assert {share.tokens.shape for share in shares} == {(1, 6)}
    # Chunks of one position: rank r holds positions r and 15 - r of each document.
    assert [int((~share.padding_mask).sum()) for share in shares] == [3, 3, 2, 2, 2, 2, 2, 2]
    assert sum(float(share.loss_mask.sum()) for share in shares) == row.num_target_tokens == 15


def rows_are_joined_and_completed_with_filler() -> None:
    from megapack.batch.iterate import step_batch

    rows = ragged_rows()
    step = step_batch(
        rows,
        context=ParallelContext.single(),
        row_length=96,
        granularity=rows[0].layout.granularity,
        rows_per_microbatch=2,
    )
    assert (step.num_microbatches, step.row_length) == (3, 192)
    assert (step.shape.length, step.shape.rows) == (192, 1)
    assert (step.normalizer.num_rows, step.normalizer.num_tokens) == (5, 6 * 96)
    last = list(step.microbatches)[-1]
    assert last.tokens.shape == (1, 192)
    assert last.document_ids == rows[4].document_ids


def restarting_positions_of_two_short_documents_at_cp2() -> None:
    fours = Granularity(segment=4, row=4)
    row = make_row([4, 4], seed=0, row_length=8, granularity=fours)
    shares = [
        build_microbatch(
            row, BatchKind.PACKED, ParallelContext.fake(ParallelSizes(cp=2), cp_rank=rank)
        )
        for rank in range(2)
    ]
    assert [share.position_ids[0].tolist() for share in shares] == [[0, 3, 0, 3], [1, 2, 1, 2]]
    assert shares[0].attention.cp_index.tolist() == [0, 3, 4, 7]


@pytest.mark.parametrize(
    "check",
    [
        masks_and_positions_are_megatrons_with_all_resets,
        a_field_of_any_shape_is_cut_as_tokens_and_labels_are,
        joined_rows_of_two_and_five_documents_at_cp2_have_no_sentinels,
        field_of_another_length_is_refused,
        last_item_grows_to_the_fixed_length_and_the_loss_masks_it,
        layout_without_tail_and_filler_row_do_not_grow,
        documents_shorter_than_cp_times_tp_leave_ranks_with_padding_alone,
        rows_are_joined_and_completed_with_filler,
        restarting_positions_of_two_short_documents_at_cp2,
    ],
    ids=lambda check: check.__name__,
)
def test_on_a_rank(ranks: RankServer, check: Callable[[], None]) -> None:
    ranks.run(check)
