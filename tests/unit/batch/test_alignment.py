"""The verifier passes what is aligned and names what is not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from megapack.batch.alignment import TOKEN_IDENTITY, VerifiedRoutes, token_identity
from megapack.batch.microbatch import MicroBatch
from megapack.batch.routing import ROUTED_EXPERTS, MissingRoutes, Placed, RouteTable, carry
from megapack.errors import ContractError
from megapack.layout.granularity import ParallelSizes
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from megapack.records.routed_experts import RouteShape
from tests.support.microbatches import microbatch as microbatch_of
from tests.support.routes import random_routes
from tests.support.rows import make_row

SHAPE = RouteShape(num_layers=2, top_k=2, num_experts=8)
ROW = make_row([5, 17, 3, 23], seed=0)
TABLE = RouteTable.of(
    random_routes([ROW], SHAPE, seed=0), shape=SHAPE, missing=MissingRoutes.REFUSE
)
RANK = ParallelContext.fake(ParallelSizes(cp=2), cp_rank=1)


def shifted(microbatch: MicroBatch, placed: Placed) -> MicroBatch:
    """Routes one position late, as labels are; identities as they should be."""
    late = np.roll(placed[ROUTED_EXPERTS], 1, axis=0)
    return carry(microbatch, {**placed, ROUTED_EXPERTS: late})


def cut_off_by_one(microbatch: MicroBatch, placed: Placed) -> MicroBatch:
    """All fields cut one position beside the tokens."""
    beside = (microbatch.attention.cp_index + 1) % microbatch.row.layout.row_length
    attention = replace(microbatch.attention, cp_index=beside)
    wrong = carry(replace(microbatch, attention=attention), placed)
    return replace(wrong, attention=microbatch.attention)


def cut_as_another_rank(microbatch: MicroBatch, placed: Placed) -> MicroBatch:
    """Tokens and fields alike, but those of rank 0: nothing but the cut itself is wrong."""
    other = ParallelContext.fake(ParallelSizes(cp=2), cp_rank=0)
    return carry(microbatch_of(microbatch.row, other), placed)


def whole_row_zigzag(microbatch: MicroBatch, placed: Placed) -> MicroBatch:
    """Tokens and fields alike, cut as one document instead of each slot."""
    length = microbatch.row.layout.row_length
    quarter = length // 4
    index = torch.arange(quarter, 3 * quarter)
    attention = replace(microbatch.attention, cp_index=index)
    tokens = torch.from_numpy(np.array(microbatch.row.tokens))[index][None].long()
    padding = torch.from_numpy(microbatch.row.layout.padding_mask())[index][None]
    cut = replace(microbatch, attention=attention, tokens=tokens, padding_mask=padding)
    return carry(cut, placed)


def unmarked(microbatch: MicroBatch, placed: Placed) -> MicroBatch:
    """Padding filled before its time."""
    return carry(microbatch, {**placed, ROUTED_EXPERTS: np.maximum(placed[ROUTED_EXPERTS], 0)})


def reversed_documents(table: RouteTable, row: PackedRow) -> np.ndarray:
    """Routes of equally long documents, given to the wrong one."""
    other = (row.document_ids[0], *reversed(row.document_ids[1:]))
    return table.place(replace(row, document_ids=other))


@pytest.mark.parametrize("cp", [1, 2, 4])
@pytest.mark.parametrize("lengths", [[5, 17, 3, 23], [1, 2], []])
def test_aligned_microbatch_passes_and_carries_identities(cp: int, lengths: list[int]) -> None:
    row = make_row(lengths, seed=3)
    table = RouteTable.of(
        random_routes([row], SHAPE, seed=0), shape=SHAPE, missing=MissingRoutes.REFUSE
    )
    valid = 0
    for rank in range(cp):
        context = ParallelContext.fake(ParallelSizes(cp=cp), cp_rank=rank)
        verified = VerifiedRoutes(table=table, context=context)(microbatch_of(row, context))
        assert verified.fields.keys() == {ROUTED_EXPERTS, TOKEN_IDENTITY}
        valid += int(verified.fields[TOKEN_IDENTITY][..., 2].sum())
    assert valid == sum(lengths)


def test_identity_of_a_row() -> None:
    row = make_row([2, 1], seed=0, row_length=32)
    identity = token_identity(row.layout)
    assert identity[:3].tolist() == [[0, 0, 1], [0, 1, 1], [-1, -1, 0]]
    assert identity[8].tolist() == [1, 0, 1]
    assert (identity[9:] == (-1, -1, 0)).all()


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (shifted, "route"),
        (cut_off_by_one, "identity"),
        (cut_as_another_rank, "identity"),
        (whole_row_zigzag, "identity"),
        (unmarked, "route"),
    ],
)
def test_verifier_names_a_wrong_transformation(fault: Callable[..., Any], named: str) -> None:
    stage = VerifiedRoutes(table=TABLE, context=RANK, carry=fault)
    with pytest.raises(ContractError, match=f"verify_alignment: {named}: local position"):
        stage(microbatch_of(ROW, RANK))


def test_verifier_names_a_wrong_document_order() -> None:
    row = make_row([5, 17, 3, 17], seed=0)
    table = RouteTable.of(
        random_routes([row], SHAPE, seed=0), shape=SHAPE, missing=MissingRoutes.REFUSE
    )
    stage = VerifiedRoutes(table=table, context=RANK, place=reversed_documents)
    with pytest.raises(ContractError, match="verify_alignment: route: local position"):
        stage(microbatch_of(row, RANK))


def test_verifier_names_tokens_that_moved_alone() -> None:
    batch = microbatch_of(ROW, RANK)
    moved = replace(batch, tokens=batch.tokens.roll(1, dims=1))
    with pytest.raises(ContractError, match="verify_alignment: token: local position"):
        VerifiedRoutes(table=TABLE, context=RANK)(moved)


def test_verifier_is_silent_for_routes_that_were_never_captured() -> None:
    table = RouteTable(shape=SHAPE, missing=MissingRoutes.LIVE)
    verified = VerifiedRoutes(table=table, context=RANK)(microbatch_of(ROW, RANK))
    assert (verified.fields[ROUTED_EXPERTS] == -1).all()
