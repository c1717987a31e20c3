"""Dense batches: masks, positions, budgets, equal counts, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megapack.batch.budget import groups_within_budget
from megapack.batch.dense import ltor_masks_and_position_ids
from megapack.batch.documents import documents_of
from megapack.batch.iterate import dense_step, microbatches_of, step_of_groups
from megapack.batch.recipe import BatchKind, BatchRecipe
from megapack.errors import ConfigError, ContractError
from megapack.layout.granularity import Granularity, ParallelSizes
from megapack.parallel.context import ParallelContext
from tests.support.rows import make_row
from tests.support.unequal_rows import ragged_rows

EOD = 1
ONES = Granularity(segment=1, row=1)
FOURS = Granularity(segment=1, row=4)
lengths_of_rows = st.lists(
    st.lists(st.integers(1, 7), min_size=1, max_size=4), min_size=1, max_size=3
)


def test_rows_longer_than_the_width_are_refused() -> None:
    with pytest.raises(ContractError, match="row 1: expected documents of at most 4 positions"):
        ltor_masks_and_position_ids([[4], [3, 2]], 4)


@given(
    lengths=st.lists(st.integers(1, 50), max_size=20),
    budget=st.integers(52, 300),
    multiple=st.sampled_from([1, 4]),
)
def test_groups_hold_each_document_once_within_the_budget(lengths, budget, multiple) -> None:
    groups = groups_within_budget(lengths, budget=budget, multiple=multiple)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        width = -(-max(lengths[i] for i in group) // multiple) * multiple
        assert len(group) * width <= budget


def test_document_over_the_budget_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"token budget = 40: expected at least 44, .*41 positions"
    ):
        groups_within_budget([3, 41], budget=40, multiple=4)


def test_dense_step_of_varying_shapes_counts_the_same_targets() -> None:
    rows = ragged_rows()
    step = dense_step(rows, context=ParallelContext.single(), token_budget=120, granularity=FOURS)
    batches = list(step.microbatches)
    assert step.shape is None
    assert all(batch.tokens.numel() <= 120 for batch in batches)
    assert len({batch.tokens.shape for batch in batches}) > 1
    targets = sum(float(batch.loss_mask.sum()) for batch in batches)
    assert targets == step.normalizer.num_target_tokens == sum(r.num_target_tokens for r in rows)
    assert step.normalizer.num_tokens == sum(batch.tokens.numel() for batch in batches)
    assert sum(int(batch.attention.lengths.sum()) for batch in batches) == 245


def test_constant_shape_is_what_pipeline_stages_exchange() -> None:
    groups = [[one] for one in documents_of([make_row([5, 17, 3], seed=0)])]
    recipe = BatchRecipe(kind=BatchKind.DENSE, granularity=FOURS, row_length=20, dense_rows=2)
    step = step_of_groups(groups, recipe, ParallelContext.single())
    assert (step.shape.length, step.shape.rows) == (20, 2)
    batch = next(step.microbatches)
    assert batch.tokens.shape == (2, 20)
    assert batch.row_mask.tolist() == [1.0, 0.0]
    assert batch.attention.lengths.tolist() == [5, 0]
    assert batch.position_ids.tolist() == [list(range(20))] * 2
    assert torch.equal(batch.attention.attention_mask[0, 0], torch.ones(20, 20).triu(1) > 0)


def test_microbatches_of_an_endless_iterator_come_one_at_a_time() -> None:
    taken = []

    def endless():
        for seed in range(10**9):
            taken.append(seed)
            yield documents_of([make_row([5, 3], seed=seed)])

    recipe = BatchRecipe(kind=BatchKind.DENSE, granularity=FOURS)
    batches = microbatches_of(endless(), recipe, ParallelContext.single())
    assert [next(batches).tokens.shape for _ in range(2)] == [(2, 8)] * 2
    assert taken == [0, 1]


def test_sequence_parallel_width_must_divide_over_tp() -> None:
    context = ParallelContext.fake(ParallelSizes(tp=2, sequence_parallel=True))
    recipe = BatchRecipe(kind=BatchKind.DENSE, granularity=ONES)
    with pytest.raises(ConfigError, match="dense batch of width 5: expected a multiple of tp 2"):
        next(microbatches_of([documents_of([make_row([5], seed=0)])], recipe, context))
