"""Rows on ranks: shares, alignment and the offsets that megatron-core reads."""

from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import Granularity, ParallelSizes
from megapack.layout.pack_layout import IGNORE_INDEX
from tests.support.ranks import RankFailure, RankServer
from tests.support.rows import make_row

FOURS = Granularity(segment=4, row=4)


def shares(*, row: Any, cp: int) -> Any:
    from megapack.batch.thd import to_microbatch
    from megapack.parallel.context import ParallelContext

    found = []
    for rank in range(cp):
        batch = to_microbatch(row, ParallelContext.fake(ParallelSizes(cp=cp), cp_rank=rank))
        params = batch.attention.packed_seq_params
        names = ("tokens", "labels", "loss_mask", "position_ids", "padding_mask")
        found.append(
            {name: getattr(batch, name)[0].numpy() for name in names}
            | {
                "dtypes": [str(getattr(batch, name).dtype) for name in names],
                "index": batch.attention.cp_index.numpy(),
                "row_mask": batch.row_mask.tolist(),
                "real": params.cu_seqlens_q.tolist(),
                "padded": params.cu_seqlens_q_padded.tolist(),
                "longest": (params.max_seqlen_q, params.max_seqlen_kv),
            }
        )
    return found


def test_cp2_share_of_two_documents_golden(ranks: RankServer) -> None:
    row = make_row([3, 4], seed=1, row_length=8, supervised=1.0, granularity=FOURS)
    first, second = ranks.run(shares, row=row, cp=2)[0]
    assert first["index"].tolist() == [0, 3, 4, 7]
    assert first["position_ids"].tolist() == [0, 3, 0, 3]
    assert second["position_ids"].tolist() == [1, 2, 1, 2]
    assert first["padding_mask"].tolist() == [False, True, False, False]
    tokens = row.tokens
    assert first["labels"].tolist() == [tokens[1], IGNORE_INDEX, tokens[5], IGNORE_INDEX]
    assert second["labels"].tolist() == [tokens[2], IGNORE_INDEX, tokens[6], tokens[7]]
    assert first["dtypes"] == [
        "torch.int64",
        "torch.int64",
        "torch.float32",
        "torch.int64",
        "torch.bool",
    ]


def test_real_and_padded_offsets_are_kept_apart_and_cover_the_row(ranks: RankServer) -> None:
    row = make_row([3, 7, 5], seed=2, row_length=44, granularity=FOURS)
    (only,) = ranks.run(shares, row=row, cp=1)[0]
    assert only["real"] == [0, 3, 10, 15, 15, 15, 15]
    assert only["padded"] == [0, 4, 12, 20, 28, 36, 44]
    assert only["longest"] == (8, 8)
    assert only["row_mask"] == [1.0]


def test_filler_row_is_one_padding_segment(ranks: RankServer) -> None:
    row = make_row([], seed=0, row_length=16, granularity=FOURS)
    (only,) = ranks.run(shares, row=row, cp=1)[0]
    assert (only["real"], only["padded"], only["row_mask"]) == ([0, 0], [0, 16], [0.0])
    assert only["padding_mask"].all()
    assert not only["loss_mask"].any()


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_shares_of_all_ranks_are_the_row(ranks: RankServer, cp: int) -> None:
    row = make_row([5, 17, 3, 23], seed=3)
    found = ranks.run(shares, row=row, cp=cp)[0]
    index = np.concatenate([share["index"] for share in found])
    assert sorted(index.tolist()) == list(range(96))
    for name, whole in {
        "tokens": row.tokens,
        "labels": row.labels(),
        "loss_mask": row.loss_mask(),
        "position_ids": row.layout.position_ids(),
        "padding_mask": row.layout.padding_mask(),
    }.items():
        joined = np.concatenate([share[name] for share in found])
        assert np.array_equal(joined, np.asarray(whole)[index]), name


def test_row_packed_for_cp1_is_refused_at_cp2(ranks: RankServer) -> None:
    row = make_row([3, 5], seed=4, row_length=8, granularity=Granularity(segment=1, row=1))
    with pytest.raises(
        RankFailure, match=r"slot 0 is 3 positions long, expected a multiple of 2\*cp"
    ):
        ranks.run(shares, row=row, cp=2)
