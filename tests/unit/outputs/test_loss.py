"""The loss head and the reduction of metrics in one process, on logits made by hand."""

import numpy as np
import pytest
import torch

from megapack.batch.microbatch import MicroBatch, ThdAttention
from megapack.errors import ContractError
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.logprobs import LogprobHead
from megapack.outputs.loss import TokenLossHead
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from tests.support.rows import make_row

ONE = ParallelContext.single()


def microbatch(row: PackedRow) -> MicroBatch:
    def share(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(values))[None]

    length = row.layout.row_length
    return MicroBatch(
        tokens=share(row.tokens.astype(np.int64)),
        labels=share(row.labels()),
        loss_mask=share(row.loss_mask().astype(np.float32)),
        position_ids=share(row.layout.position_ids()),
        padding_mask=share(row.layout.padding_mask()),
        row_mask=torch.ones(1),
        attention=ThdAttention(
            layout=row.layout, cp_index=torch.arange(length), packed_seq_params=None
        ),
        row=row,
    )


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
