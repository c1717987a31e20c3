"""An independent anchor: packed rows against megatron-core's own attention, norm and loss.

The stock local spec runs each document alone and unpacked, with megatron-core's cross-entropy,
and all of them as one dense batch, with what `model_keywords` gives it.
"""

from typing import Any

import pytest

from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankServer
from tests.support.rows import VOCAB, make_row, one_document, worst_error


def stock_and_packed() -> Any:
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    from megapack.batch.dense import dense_row
    from megapack.batch.documents import documents_of
    from megapack.batch.recipe import BatchKind, build_microbatch
    from megapack.model.build import transformer_config
    from megapack.model.keywords import model_keywords
    from tests.support.tiny_training import JOB, start, train_step

    job = JOB.model_copy(update={"vocab_multiple": 1})
    row = make_row([5, 17, 3, 23], seed=6)
    packed = train_step(sizes=ParallelSizes(), rows=[row], dtype="float32", job=job)
    context, chunks, _ = start(ParallelSizes(), dtype=torch.float32, job=job)
    stock = GPTModel(
        transformer_config(job, context=context),
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        VOCAB,
        512,
        position_embedding_type="rope",
        rotary_base=job.rotary_base,
    )
    stock.load_state_dict(chunks[0].state_dict())
    total = torch.zeros(())
    for i in range(row.layout.num_segments):
        alone = one_document(row, i)
        length = alone.layout.row_length
        future = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
        losses = stock(
            torch.from_numpy(alone.tokens).long()[None],
            torch.arange(length)[None],
            future,
            labels=torch.from_numpy(alone.labels()).clamp(min=0)[None],
        )
        total = total + (losses[0] * torch.from_numpy(alone.loss_mask())).sum()
    total.backward()
    gradients = {
        name: parameter.grad.double().numpy() / packed.num_target_tokens
        for name, parameter in stock.named_parameters()
    }
    batch = build_microbatch(
        dense_row(documents_of([row]), rows=5, width=24), BatchKind.DENSE, context
    )
    losses = stock(**model_keywords(stock, batch), labels=batch.labels.clamp(min=0))
    dense = float((losses * batch.loss_mask).sum())
    return packed, (float(total), dense), gradients


def test_packed_row_equals_stock_model_one_document_at_a_time(ranks: RankServer) -> None:
    packed, losses, gradients = ranks.run(stock_and_packed)[0]
    assert losses == pytest.approx((packed.loss_sum, packed.loss_sum), rel=2e-6)
    assert worst_error(packed.gradients, gradients) < 5e-6
