"""The loss head and the reduction of metrics in one process, on logits made by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from megapack.engine.metrics import reduce_step
from megapack.errors import ContractError
from megapack.jobs.outputs import LogitsForm, LossMean, OutputSettings, TokenLossBy
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.logprobs import LogprobHead
from megapack.outputs.loss import Averaging, ModelTokenLossHead, TokenLossHead
from megapack.parallel.context import ParallelContext
from tests.support.microbatches import microbatch
from tests.support.rows import make_row

ONE = ParallelContext.single()


def uniform(length: int, vocab_size: int) -> ModelOutput:
    logits = torch.zeros(length, vocab_size + 3, requires_grad=True)
    return ModelOutput(logits=logits, hidden=None, vocab_size=vocab_size)


def test_loss_of_uniform_logits_is_log_of_the_real_vocabulary() -> None:
    row = make_row([5, 17, 3], seed=1)
    result = TokenLossHead()(uniform(96, 101), microbatch(row), ONE)
    assert TokenLossHead().needs == Need.LOGITS
    assert int(result.num_target_tokens) == row.num_target_tokens
    assert float(result.loss_sum.detach()) == pytest.approx(row.num_target_tokens * np.log(101))


def test_masked_row_gives_zero_that_can_be_differentiated() -> None:
    output = uniform(96, 101)
    result = TokenLossHead()(output, microbatch(make_row([5, 17], seed=1, supervised=0.0)), ONE)
    assert (float(result.loss_sum.detach()), int(result.num_target_tokens)) == (0.0, 0)
    result.loss_sum.backward()
    assert not output.logits.grad.any()


def test_logprob_head_cuts_documents_and_marks_positions_without_label() -> None:
    row = make_row([5, 17, 3], seed=1)
    records = LogprobHead()(uniform(96, 101), microbatch(row), ONE).records
    assert [record.document_id for record in records] == list(row.document_ids)
    assert [record.target_logprobs.shape[0] for record in records] == [5, 17, 3]
    finite = sum(int(record.target_logprobs.isfinite().sum()) for record in records)
    assert finite == row.num_target_tokens


def test_head_without_logits_is_refused() -> None:
    output = ModelOutput(logits=None, hidden=None, vocab_size=101)
    with pytest.raises(ContractError, match=r"expected ModelOutput\.logits, found None"):
        TokenLossHead()(output, microbatch(make_row([5], seed=1)), ONE)


def from_losses(losses: dict[int, float], length: int) -> ModelOutput:
    """An output whose token losses are as given, by position, and 0 elsewhere."""
    token_loss = torch.zeros(length, dtype=torch.float64)
    for position, loss in losses.items():
        token_loss[position] = loss
    return ModelOutput(logits=None, hidden=None, vocab_size=101, token_loss=token_loss)


def test_sequence_mean_of_seven_and_two_targets_is_the_mean_of_their_means() -> None:
    row = make_row([8, 3, 1], seed=1, supervised=1.0)
    assert row.targets_by_document().tolist() == [7, 2, 0]
    output = from_losses({**dict.fromkeys(range(7), 1.0), 8: 4.0, 9: 4.0}, 96)
    token = ModelTokenLossHead()(output, microbatch(row), ONE)
    sequence = ModelTokenLossHead(averaging=Averaging(mean=LossMean.SEQUENCE_MEAN))(
        output, microbatch(row), ONE
    )
    assert float(token.loss_sum) / int(token.divides_by) == pytest.approx(15 / 9)
    assert (float(sequence.loss_sum), int(sequence.divides_by)) == (pytest.approx(5.0), 2)
    assert int(sequence.num_target_tokens) == 9


def test_loss_by_source_counts_each_sources_tokens() -> None:
    row = replace(make_row([8, 3, 1], seed=1, supervised=1.0), sources=("a", "", "a"))
    output = from_losses({**dict.fromkeys(range(7), 1.0), 8: 4.0, 9: 4.0}, 96)
    head = ModelTokenLossHead(averaging=Averaging(sources=("", "a", "b")))
    metrics = reduce_step([head(output, microbatch(row), ONE)], ONE).metrics
    assert metrics == pytest.approx({"loss": 15 / 9, "loss/a": 1.0, "loss/unnamed": 4.0})


def test_source_that_the_run_does_not_know_is_refused() -> None:
    row = replace(make_row([8], seed=1), sources=("new",))
    head = ModelTokenLossHead(averaging=Averaging(sources=("a",)))
    with pytest.raises(ContractError, match=r"expected the sources \['a'\], found \['new'\]"):
        head(from_losses({}, 96), microbatch(row), ONE)


def test_nan_at_a_masked_position_changes_nothing() -> None:
    row = make_row([8], seed=1, supervised=1.0)
    output = from_losses({0: 3.0, 7: float("nan"), 50: float("inf")}, 96)
    result = ModelTokenLossHead()(output, microbatch(row), ONE)
    assert float(result.loss_sum) == 3.0


def test_model_loss_with_chunked_logits_is_refused() -> None:
    with pytest.raises(ValidationError, match="token_loss = model: expected logits = model_dtype"):
        OutputSettings(token_loss=TokenLossBy.MODEL, logits=LogitsForm.BY_CHUNKS)
