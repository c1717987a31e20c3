"""Documents keep positions, labels and ends however they are laid out."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.batch.dense import dense_row
from megapack.batch.documents import PositionedDocument, documents_of, lay_out, lengths_of
from megapack.batch.fields import by_document
from megapack.batch.join import join_rows
from megapack.batch.runtime_packing import (
    documents_of_batch,
    pack_documents,
    runtime_layout,
    unpack,
)
from megapack.errors import ConfigError, ContractError, DataError
from megapack.layout.granularity import (
    Granularity,
    ParallelSizes,
    Precision,
    TokenDispatch,
    granularity,
)
from megapack.layout.pack_layout import IGNORE_INDEX
from megapack.layout.token_fields import TokenField, place, unplace
from megapack.records.packed_row import filler_row
from tests.support.rows import GRANULARITY, make_row
from tests.support.unequal_rows import one_longer_than_a_row, ragged_rows

FULL = one_longer_than_a_row(9)

documents = st.lists(
    st.integers(1, 40).flatmap(
        lambda m: st.tuples(
            st.lists(st.integers(0, 100), min_size=m, max_size=m),
            st.lists(st.booleans(), min_size=m, max_size=m),
        )
    ),
    min_size=1,
    max_size=6,
)


def positioned(drawn) -> list[PositionedDocument]:
    return [
        PositionedDocument(
            document_id=f"{i:032x}",
            source="s",
            tokens=np.array(tokens, np.int32),
            labels=np.where(counted, [*tokens[1:], 7], IGNORE_INDEX).astype(np.int32),
        )
        for i, (tokens, counted) in enumerate(drawn)
    ]


def same(found, expected) -> None:
    assert [one.document_id for one in found] == [one.document_id for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.labels.tolist() == other.labels.tolist()


@settings(max_examples=30)
@given(drawn=documents, cp=st.sampled_from([1, 2, 4]), tail=st.integers(0, 3))
def test_documents_survive_packing_at_any_granularity(drawn, cp, tail) -> None:
    given_ = positioned(drawn)
    needed = granularity(ParallelSizes(cp=cp), Precision.FP8_TENSOR)
    shortest = runtime_layout(lengths_of(given_), needed)
    row = pack_documents(given_, needed, row_length=shortest.row_length + tail * needed.row)
    same(documents_of([row]), given_)
    counted = row.labels() != IGNORE_INDEX
    assert np.array_equal(row.loss_mask(), counted)
    assert row.num_target_tokens == int(counted.sum()) == int(row.arrays().loss_mask.sum())
    assert np.array_equal(row.arrays().labels, row.labels())


@settings(max_examples=30)
@given(drawn=documents, rows=st.integers(0, 2), width=st.integers(40, 44))
def test_documents_survive_a_rectangle(drawn, rows, width) -> None:
    given_ = positioned(drawn)
    row = dense_row(given_, rows=len(given_) + rows, width=width)
    same(documents_of([row]), given_)
    assert row.layout.row_length == (len(given_) + rows) * width


@given(order=st.permutations(range(5)), fillers=st.integers(0, 2))
def test_documents_survive_joining_ragged_rows(order, fillers) -> None:
    rows = [ragged_rows()[i] for i in order]
    rows += [filler_row(row_length=96, granularity=GRANULARITY)] * fillers
    joined = join_rows(rows)
    same(documents_of([joined]), documents_of(rows))
    assert joined.num_target_tokens == sum(row.num_target_tokens for row in rows)
    assert joined.layout.row_length == 96 * len(rows)
    same(documents_of([join_rows([joined, FULL])]), [*documents_of(rows), *documents_of([FULL])])


def test_end_label_of_a_document_in_the_middle_counts_beside_its_neighbours_first() -> None:
    joined = join_rows([FULL, make_row([5], seed=1, supervised=1.0)])
    assert joined.inner_labels == ((95, FULL.final_label),)
    assert joined.final_label is None
    assert joined.labels()[95] == FULL.final_label
    assert joined.target_runs.tolist() == [39, 96, 96, 100]
    laid = lay_out(documents_of([joined]), joined.layout)
    assert laid.target_runs.tolist() == [39, 96, 96, 100]
    assert join_rows([make_row([5], seed=1), FULL]).final_label is None


def test_rows_of_other_granularity_are_not_joined() -> None:
    other = make_row([5], seed=1, granularity=Granularity(segment=4, row=16))
    with pytest.raises(
        ContractError, match=r"rows of one granularity, found .*\(4, 16\), \(8, 16\)"
    ):
        join_rows([other, make_row([5], seed=1)])


@pytest.mark.parametrize(
    ("precision", "dispatch", "expected"),
    [
        (Precision.BF16, TokenDispatch.ALL_TO_ALL, (8, 8)),
        (Precision.FP8_TENSOR, TokenDispatch.ALL_TO_ALL, (8, 128)),
        (Precision.MXFP8, TokenDispatch.ALL_TO_ALL, (8, 256)),
        (Precision.FP8_BLOCKWISE, TokenDispatch.ALL_TO_ALL, (8, 1024)),
        (Precision.BF16, TokenDispatch.HYBRID_EP, (8, 1024)),
        (Precision.MXFP8, TokenDispatch.HYBRID_EP, (8, 1024)),
    ],
)
def test_multiples_of_recipes_at_cp4_tp2(precision, dispatch, expected) -> None:
    found = granularity(
        ParallelSizes(cp=4, tp=2, sequence_parallel=True), precision, dispatch=dispatch
    )
    assert (found.segment, found.row) == expected
    layout = runtime_layout([3, 7, 5], found)
    assert layout.row_length % found.row == 0
    assert layout.num_slot_tokens == 24


def test_runtime_row_that_is_too_short_names_both_lengths() -> None:
    with pytest.raises(
        ConfigError, match="3 documents need 24 positions, expected at most row_len"
    ):
        runtime_layout([3, 7, 5], Granularity(segment=8, row=8), row_length=16)
    with pytest.raises(ConfigError, match="row_length = 20 is not a multiple of row granularity 8"):
        runtime_layout([3], Granularity(segment=8, row=8), row_length=20)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    cp=st.sampled_from([1, 2]),
    extra=st.integers(0, 2),
)
def test_unpack_is_the_inverse_of_packing_a_padded_batch(lengths, cp, extra) -> None:
    width = 12
    draw = np.random.default_rng(sum(lengths))
    ids = draw.integers(1, 100, (len(lengths), width))
    ids[np.arange(width) >= np.array(lengths)[:, None]] = 0
    items = [PositionedDocument.of(one) for one in documents_of_batch(ids, lengths)]
    needed = granularity(ParallelSizes(cp=cp), Precision.FP8_TENSOR)
    length = runtime_layout(lengths, needed).row_length + extra * needed.row
    row = pack_documents(items, needed, row_length=length, pad_id=77)
    assert torch.equal(
        unpack(torch.from_numpy(row.tokens.copy()), row.layout, width=width),
        torch.from_numpy(ids).int(),
    )
    hidden = torch.randn(length, 3, dtype=torch.float64)
    back = unpack(hidden, row.layout)
    assert back.shape == (len(lengths), max(lengths), 3)
    for item, part, count in zip(back, unplace(hidden.numpy(), row.layout), lengths, strict=True):
        assert np.array_equal(item[:count], part)
        assert not item[count:].any()


def test_unpack_to_a_width_below_a_document_is_refused() -> None:
    row = make_row([5, 3], seed=0)
    with pytest.raises(ConfigError, match="a document has 5 positions, expected at most width = 4"):
        unpack(torch.zeros(96), row.layout, width=4)


def test_masks_of_a_batch_are_token_aligned_and_items_may_weigh_nothing() -> None:
    ids = np.array([[5, 6, 7, 0], [8, 9, 1, 2]])
    first, second = documents_of_batch(
        ids, [3, 4], token_mask=np.array([[1, 0, 1, 1], [1, 1, 1, 1]]), sample_mask=[1, 0]
    )
    assert first.labels().tolist() == [IGNORE_INDEX, 7, IGNORE_INDEX]
    assert second.num_target_tokens == 0
    with pytest.raises(DataError, match=r"item 1: expected a length in \[1, 4\], found 0"):
        documents_of_batch(ids, [3, 0])


def test_document_one_longer_than_a_row_is_positioned_with_its_last_label() -> None:
    (document,) = documents_of_batch([np.arange(5)], [5])
    assert PositionedDocument.of(document, most=4).labels.tolist() == [1, 2, 3, 4]
    assert PositionedDocument.of(document).labels.tolist() == [1, 2, 3, 4, IGNORE_INDEX]
    with pytest.raises(ContractError, match="has 5 tokens, expected at most 4"):
        PositionedDocument.of(document, most=3)


def test_values_of_an_unknown_document_are_refused() -> None:
    row = make_row([5, 3], seed=0)
    spec = TokenField(name="media", dtype=np.bool_, pad=False)
    with pytest.raises(
        ContractError, match="media: expected values of all 2 documents, found none"
    ):
        by_document(spec, {row.document_ids[0]: np.ones(5, bool)}, row)
    assert place(spec, [np.ones(5, bool), np.ones(3, bool)], row.layout).sum() == 8


def test_label_that_is_not_the_next_token_is_refused() -> None:
    with pytest.raises(ContractError, match="expected the next token 6 as label of position 0"):
        PositionedDocument(
            document_id="a",
            source="",
            tokens=np.array([5, 6], np.int32),
            labels=np.array([5, IGNORE_INDEX], np.int32),
        )
