"""Law 9: log-probs and payloads do not depend on the layout or on the packing.

What payloads are held against: each document alone, one process, float64, whole logits, numpy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import Granularity, ParallelSizes
from megapack.layout.pack_layout import PackLayout
from megapack.layout.runs import runs_of_mask
from megapack.records.document import labels_digest
from megapack.records.packed_row import PackedRow
from megapack.records.payload import PayloadDtype, PayloadKind
from tests.support.payload_world import (
    TIED_IDS,
    Asked,
    World,
    dense_outputs,
    dense_topk,
    is_rounded,
    log_softmax,
    payload_world,
)
from tests.support.ranks import RankServer
from tests.support.rows import VOCAB, make_row, one_document
from tests.support.unequal_rows import one_longer_than_a_row, pieces_of_a_split

FP32, FP16, BF16 = PayloadDtype.FP32, PayloadDtype.FP16, PayloadDtype.BF16
LOGPROBS, TOPK, HIDDEN, LOGITS = PayloadKind
LAYOUTS = {
    "one": ParallelSizes(),
    "cp2": ParallelSizes(cp=2),
    "tp2": ParallelSizes(tp=2),
    "tp2-sp": ParallelSizes(tp=2, sequence_parallel=True),
    "pp2": ParallelSizes(pp=2),
    "tp2-sp-cp2": ParallelSizes(tp=2, cp=2, sequence_parallel=True),
}
T = 0.8
K = 8
TIMEOUT_S = 240.0
ROWS_AT_ONCE = 40
"""Of the LM head: its blocks meet the border of 64 rows a rank inside, and end ragged."""


def documents_of(rows: list[PackedRow]) -> list[PackedRow]:
    """Each document alone in a row; one that is longer than its row is alone already."""
    return [
        row if row.final_label is not None else one_document(row, i)
        for row in rows
        for i in range(row.layout.num_segments)
    ]


def packed_anew(documents: list[PackedRow], *, row_length: int) -> PackedRow:
    """Documents in a row of another length and of other multiples."""
    layout = PackLayout(
        row_length=row_length,
        lengths=np.array([one.layout.row_length for one in documents], np.int32),
        granularity=Granularity(segment=4, row=16),
    )
    tokens, counted = np.zeros(row_length, np.int32), np.zeros(row_length, np.bool_)
    for start, one in zip(layout.slot_starts.tolist(), documents, strict=True):
        here = slice(start, start + one.layout.row_length)
        tokens[here], counted[here] = one.tokens, one.loss_mask()
    return PackedRow(
        tokens=tokens,
        target_runs=runs_of_mask(counted),
        layout=layout,
        document_ids=tuple(one.document_ids[0] for one in documents),
    )


ROWS = [
    make_row([5, 17, 3, 23], seed=0),
    make_row([1, 2, 40], seed=1),
    one_longer_than_a_row(9),
    pieces_of_a_split(5),
]
DOCUMENTS = {one.document_ids[0]: one for one in documents_of(ROWS)}
SHORT = [one for one in DOCUMENTS.values() if one.layout.row_length < 96]
ANEW = [packed_anew(SHORT[::-2], row_length=112), packed_anew(SHORT[-2::-2], row_length=112)]
SEVERAL = ((TOPK, FP32), (HIDDEN, FP32), (LOGITS, FP32))
ASKED = {
    "several": Asked(rows=ROWS, kinds=SEVERAL, top_k=K, temperature=T, tokens_per_chunk=7),
    "joined": Asked(rows=ROWS, kinds=SEVERAL, top_k=K, temperature=T, rows_per_microbatch=2),
    "anew": Asked(rows=ANEW, kinds=SEVERAL, top_k=K, temperature=T, tokens_per_chunk=10),
    "narrow": Asked(rows=ROWS, kinds=((HIDDEN, BF16), (LOGITS, FP16), (TOPK, FP16)), top_k=80),
    "all": Asked(rows=ROWS, kinds=((TOPK, FP32),), top_k=VOCAB, temperature=T),
    "topk": Asked(rows=ROWS, kinds=((TOPK, FP32),), top_k=K, temperature=T),
    "hidden": Asked(rows=ROWS, kinds=((HIDDEN, FP32),), temperature=T),
    "logits": Asked(rows=ROWS, kinds=((LOGITS, FP32),), temperature=T),
    "logprobs": Asked(rows=ROWS, kinds=((LOGPROBS, FP32),), temperature=T),
}
Look = Callable[[str], list[World]]


@pytest.fixture(scope="module")
def dense(ranks: RankServer) -> dict[str, Any]:
    """Float64 logits and hidden states of every document alone, and LM heads."""
    return ranks.run(dense_outputs, timeout_s=TIMEOUT_S, documents=list(DOCUMENTS.values()))[0]


@pytest.fixture(scope="module")
def look(ranks: RankServer) -> Look:
    """What all ranks of a layout gave, run once each."""
    known: dict[str, list[World]] = {}

    def at(layout: str) -> list[World]:
        if layout not in known:
            sizes = LAYOUTS[layout]
            known[layout] = ranks.run(
                payload_world,
                timeout_s=TIMEOUT_S,
                world_size=sizes.world_size,
                sizes=sizes,
                asked=ASKED,
                rows=ROWS,
                rows_at_once=ROWS_AT_ONCE,
            )
        return known[layout]

    return at


def written(worlds: list[World], name: str, kind: PayloadKind) -> dict[str, Any]:
    """Payloads of the one rank that has any: that of all documents."""
    with_any = [world.payloads[name][kind] for world in worlds if world.payloads[name][kind]]
    assert len(with_any) == 1
    return with_any[0]


def scaled_logits(dense: dict[str, Any], name: str, key: str) -> Any:
    """float64 [m, V] over the temperature of what was asked."""
    return dense[key][0] / ASKED[name].temperature


@pytest.mark.parametrize("name", ["several", "joined", "anew", "narrow", "all"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_payload_at_any_layout_equals_document_alone(
    look: Look, dense: dict[str, Any], layout: str, name: str
) -> None:
    asked = ASKED[name]
    for kind, dtype in asked.kinds:
        got = written(look(layout), name, kind)
        assert got.keys() == {key for row in asked.rows for key in row.document_ids}
        for key, payload in got.items():
            assert (payload.kind, payload.dtype) == (kind, dtype)
            assert payload.values.flags.c_contiguous
            if kind is TOPK:
                logprobs, ids, tail = dense_topk(scaled_logits(dense, name, key), asked.top_k)
                assert payload.indices.tobytes() == ids.astype(np.int32).tobytes()
                assert is_rounded(payload, logprobs)
                assert is_rounded(payload, tail, name="tail_logprobs")
            else:
                assert is_rounded(payload, dense[key][1 if kind is HIDDEN else 0])


@pytest.mark.parametrize("name", ["several", "joined", "anew", "narrow", "logprobs"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_payload_holds_real_positions_and_nan_where_no_label_counts(
    look: Look, dense: dict[str, Any], layout: str, name: str
) -> None:
    for kind, _ in ASKED[name].kinds:
        for key, payload in written(look(layout), name, kind).items():
            alone = DOCUMENTS[key]
            counted, labels = alone.loss_mask(), alone.labels()
            assert payload.num_positions == alone.layout.row_length == len(dense[key][0])
            assert payload.labels_digest == labels_digest(alone.tokens, labels)
            logprobs = log_softmax(scaled_logits(dense, name, key))
            expected = np.full(len(labels), np.nan)
            expected[counted] = logprobs[counted, labels[counted]]
            assert is_rounded(payload, expected, name="target_logprobs")


def test_documents_meet_ties_at_the_kth_place_on_both_shards(dense: dict[str, Any]) -> None:
    at_border = 0
    for key in DOCUMENTS:
        falling = -np.sort(-dense[key][0], axis=1)
        tied = falling[:, K - 1] == falling[:, K]
        chosen = dense_topk(dense[key][0], K)[1][tied]
        lower, upper = np.isin(chosen, TIED_IDS[:5]), np.isin(chosen, TIED_IDS[5:])
        at_border += int((lower.any(axis=1) & upper.any(axis=1)).sum())
    assert at_border > 20


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_kinds_in_one_forward_equal_each_alone(look: Look, layout: str) -> None:
    for kind, name in ((TOPK, "topk"), (HIDDEN, "hidden"), (LOGITS, "logits")):
        together = written(look(layout), "several", kind)
        for key, alone in written(look(layout), name, kind).items():
            for attribute in ("values", "indices", "tail_logprobs", "target_logprobs"):
                mine, other = getattr(together[key], attribute), getattr(alone, attribute)
                assert mine is other is None or np.array_equal(mine, other, equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_of_earlier_microbatches_are_gone_and_other_stages_give_none(
    look: Look, layout: str
) -> None:
    sizes, worlds = LAYOUTS[layout], look(layout)
    for rank, world in enumerate(worlds):
        last = rank >= len(worlds) * (sizes.pp - 1) // sizes.pp
        for name, kept in world.kept.items():
            assert len(kept) == (len(ROWS) if last and name not in ("joined", "anew") else 2) * last
            # megatron-core holds on to the last one until the next is there.
            assert max(kept, default=0) <= 1
            assert not kept or kept[-1] <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("embeddings", ["untied", "tied"])
def test_lm_head_rows_are_the_weight_of_one_process(
    look: Look, dense: dict[str, Any], layout: str, embeddings: str
) -> None:
    for world in look(layout):
        blocks = world.lm_head.get(embeddings, [])
        assert [len(block) for block in blocks] in ([], [40, 40, 21])
        if blocks:
            assert np.concatenate(blocks).tobytes() == dense[embeddings].tobytes()
    assert any(world.lm_head.get(embeddings) for world in look(layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_logprobs_at_any_layout_equal_one_process(
    look: Look, dense: dict[str, Any], layout: str, temperature: float
) -> None:
    by_rank = [world.logprobs[temperature] for world in look(layout)]
    got = next(by_document for by_document in by_rank if by_document)
    assert sum(bool(by_document) for by_document in by_rank) == 1
    assert got.keys() == DOCUMENTS.keys()
    for key, values in got.items():
        counted = DOCUMENTS[key].loss_mask()
        picked = log_softmax(dense[key][0] / temperature)[counted, DOCUMENTS[key].labels()[counted]]
        np.testing.assert_allclose(values[counted], picked, rtol=1e-7)
        assert np.isnan(values[~counted]).all()
