"""Models: names in checkpoints, initial weights, backends, layouts that do not fit."""

import numpy as np
import pytest

from megapack.jobs.model import BackendName
from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankServer


def checkpoint_names() -> list[str]:
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

    from tests.support.tiny_training import JOB, start

    context, chunks, _ = start(ParallelSizes(), job=JOB.model_copy(update={"qk_layernorm": True}))
    metadata = {"dp_cp_group": context.dp_cp_group}
    state = chunks[0].sharded_state_dict(metadata=metadata)
    weights = (ShardedTensor, ShardedTensorFactory)
    return sorted({entry.key for entry in state.values() if isinstance(entry, weights)})


def weights(*, sizes: ParallelSizes, tied: bool) -> dict[str, np.ndarray]:
    from tests.support.tiny_training import JOB, start, whole_parameters

    context, chunks, _ = start(sizes, job=JOB.model_copy(update={"tie_embeddings": tied}))
    return whole_parameters(chunks[0], context, attribute="data", tied=tied)


def biases_on_used_memory() -> dict[str, float]:
    import torch

    from megapack.model.initialize import initialize_weights
    from tests.support.rows import VOCAB
    from tests.support.tiny_training import JOB, start

    job = JOB.model_copy(update={"qkv_bias": True})
    context, chunks, _ = start(ParallelSizes(), job=job)
    biases = {n: p for n, p in chunks[0].named_parameters() if n.endswith(".bias")}
    with torch.no_grad():
        for bias in biases.values():
            bias.fill_(7.0)
    initialize_weights(chunks[0], job=job, context=context, vocab_size=VOCAB, seed=11)
    return {name: float(bias.abs().max()) for name, bias in biases.items()}


def refusal(*, what: str) -> str:
    from megapack.errors import MegapackError
    from megapack.model.backend import select_backend
    from megapack.model.build import transformer_config
    from megapack.parallel.context import ParallelContext
    from tests.support.tiny_training import JOB

    try:
        if what == "te":
            select_backend(BackendName.TE)
        else:
            transformer_config(JOB, context=ParallelContext.fake(ParallelSizes(tp=3)))
    except MegapackError as error:
        return str(error)
    return ""


def forward_without_boundaries() -> str:
    import torch

    from megapack.errors import ContractError
    from tests.support.tiny_training import start

    _, chunks, _ = start(ParallelSizes())
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    try:
        chunks[0](tokens, tokens, None)
    except ContractError as error:
        return str(error)
    return ""


def test_checkpoint_names_are_those_of_transformer_engine(ranks: RankServer) -> None:
    assert ranks.run(checkpoint_names)[0] == [
        "decoder.final_layernorm.weight",
        "decoder.layers.mlp.linear_fc1.layer_norm_weight",
        "decoder.layers.mlp.linear_fc1.weight",
        "decoder.layers.mlp.linear_fc2.weight",
        "decoder.layers.self_attention.k_layernorm.weight",
        "decoder.layers.self_attention.linear_proj.weight",
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight",
        "decoder.layers.self_attention.linear_qkv.weight",
        "decoder.layers.self_attention.q_layernorm.weight",
        "embedding.word_embeddings.weight",
        "output_layer.weight",
    ]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_initial_weights_are_the_same_at_tp2_pp2(ranks: RankServer, *, tied: bool) -> None:
    one = ranks.run(weights, sizes=ParallelSizes(), tied=tied)[0]
    sizes = ParallelSizes(tp=2, pp=2, sequence_parallel=True)
    four = ranks.run(weights, world_size=4, sizes=sizes, tied=tied)[0]
    assert four.keys() == one.keys()
    assert all(np.array_equal(four[name], value) for name, value in one.items())
    spread = {name: float(value.std()) for name, value in one.items() if value.ndim == 2}
    assert spread["embedding.word_embeddings.weight"] == pytest.approx(0.2, rel=0.1)
    assert spread["decoder.layers.1.mlp.linear_fc2.weight"] == pytest.approx(0.1, rel=0.1)


def test_initial_biases_are_zero_whatever_their_memory_held(ranks: RankServer) -> None:
    names = [f"decoder.layers.{i}.self_attention.linear_qkv.bias" for i in (0, 1)]
    assert ranks.run(biases_on_used_memory)[0] == dict.fromkeys(names, 0.0)


def test_te_on_a_machine_without_it_is_refused(ranks: RankServer) -> None:
    message = ranks.run(refusal, what="te")[0]
    assert message.startswith("backend = te: expected a CUDA device and the package")
    assert "use backend = portable" in message


def test_layout_that_does_not_divide_the_model_is_refused(ranks: RankServer) -> None:
    message = ranks.run(refusal, what="tp3")[0]
    assert "num_attention_heads = 4, expected a multiple of tp = 3" in message
    assert "num_query_groups = 2, expected a multiple or a divisor of tp = 3" in message


def test_attention_without_boundaries_is_refused(ranks: RankServer) -> None:
    assert (
        "expected packed_seq_params, or the mask of a dense batch, found neither"
        in ranks.run(forward_without_boundaries)[0]
    )
