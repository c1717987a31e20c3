"""What each kind of model is called with."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from megapack.batch.documents import documents_of
from megapack.batch.fields import RowFields, carry
from megapack.batch.recipe import BatchKind, BatchRecipe, build_microbatch, lay_documents
from megapack.layout.granularity import Granularity, ParallelSizes
from megapack.model.keywords import KEYWORDS, accepts, model_keywords
from megapack.parallel.context import ParallelContext
from tests.support.ranks import RankServer
from tests.support.rows import make_row

MASK = "media_token_validity_mask"


class Plain:
    config = SimpleNamespace(num_moe_experts=None, sequence_parallel=False)
    pre_process = True

    def forward(self, input_ids, position_ids, attention_mask): ...


class Experts(Plain):
    config = SimpleNamespace(num_moe_experts=4, sequence_parallel=False)


class WithMedia(Plain):
    def forward(self, input_ids, *, media_token_validity_mask=None): ...


class TakesAny(Plain):
    def forward(self, input_ids, **rest): ...


def batch_of(kind: BatchKind):
    recipe = BatchRecipe(kind=kind, granularity=Granularity(segment=1, row=4))
    row = lay_documents(documents_of([make_row([5, 2], seed=0)]), recipe)
    plain = build_microbatch(row, kind, ParallelContext.single())
    valid = np.zeros(plain.row.layout.row_length, bool)
    return carry(plain, RowFields(model={MASK: valid}))


GIVEN = {
    BatchKind.PACKED: {"packed_seq_params", "padding_mask"},
    BatchKind.DENSE: {"attention_mask", "padding_mask"},
    BatchKind.SELF_PACKED: {"attention_mask", "packed_seq_params"},
    BatchKind.FULL_ROW: {"packed_seq_params", "padding_mask"},
}


def kinds_have_values(kind: BatchKind) -> None:
    given = GIVEN[kind]
    found = model_keywords(Experts(), batch_of(kind))
    assert found.keys() == KEYWORDS.keys()
    assert {name for name, value in found.items() if value is not None} == {
        "input_ids",
        "position_ids",
        *given,
    }
    if "padding_mask" in given:
        assert found["padding_mask"].shape == found["input_ids"].shape
        assert int((~found["padding_mask"]).sum()) == 7
    assert model_keywords(Plain(), batch_of(kind))["padding_mask"] is None


def media_validity_goes_only_to_models_that_accept_it(kind: BatchKind) -> None:
    batch = batch_of(kind)
    assert MASK not in model_keywords(Plain(), batch)
    for model in (WithMedia(), TakesAny()):
        assert torch.equal(model_keywords(model, batch)[MASK], batch.inputs[MASK])
        assert batch.inputs[MASK].shape == batch.tokens.shape
    assert accepts(WithMedia(), MASK)
    assert not accepts(Plain(), MASK)


def polarity_of_the_two_masks() -> None:
    dense = model_keywords(Plain(), batch_of(BatchKind.DENSE))["attention_mask"]
    assert not dense[0, 0, 3, 0], "a query sees what came before"
    assert dense[0, 0, 0, 3], "True where it may not see"
    packed = model_keywords(Plain(), batch_of(BatchKind.SELF_PACKED))["attention_mask"]
    assert packed[1, :2].all(), "True at valid tokens"


def mask_of_a_model_that_cuts_is_as_long_as_its_tokens() -> None:
    """The model cuts both for context parallelism; this rank's share would be cut twice."""
    row = make_row([5, 17, 3, 23], seed=0)
    for rank in range(2):
        context = ParallelContext.fake(ParallelSizes(cp=2), cp_rank=rank)
        whole = build_microbatch(row, BatchKind.FULL_ROW, context)
        assert whole.padding_mask.shape == (1, 48)
        mask = model_keywords(Experts(), whole)["padding_mask"]
        assert np.array_equal(mask[0].numpy(), row.layout.padding_mask())
        share = build_microbatch(row, BatchKind.PACKED, context)
        assert torch.equal(model_keywords(Experts(), share)["padding_mask"], whole.padding_mask)


@pytest.mark.parametrize("kind", BatchKind)
@pytest.mark.parametrize(
    "check",
    [kinds_have_values, media_validity_goes_only_to_models_that_accept_it],
    ids=lambda check: check.__name__,
)
def test_keywords(ranks: RankServer, check: Callable[..., None], kind: BatchKind) -> None:
    ranks.run(check, kind=kind)


def test_padding_mask_of_a_model_that_cuts_its_row_is_whole(ranks: RankServer) -> None:
    ranks.run(mask_of_a_model_that_cuts_is_as_long_as_its_tokens)


def test_polarity_of_masks(ranks: RankServer) -> None:
    ranks.run(polarity_of_the_two_masks)
