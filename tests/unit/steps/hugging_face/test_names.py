"""The table of names."""

import pytest

from megapack.errors import ContractError
from megapack.steps.hugging_face.config import model_of_config
from megapack.steps.hugging_face.names import Joined, origin, tensor_shapes
from tests.support.hf_folder import CONFIG

LAYER = "decoder.layers.1."
PARAMETERS = [
    "embedding.word_embeddings.weight",
    "decoder.final_layernorm.weight",
    "output_layer.weight",
]
INSIDE = [
    "input_layernorm.weight",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.q_layernorm.weight",
    "self_attention.k_layernorm.weight",
    "self_attention.linear_proj.weight",
    "pre_mlp_layernorm.weight",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc2.weight",
]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_each_tensor_belongs_to_one_parameter(family):
    job = model_of_config({**CONFIG, "model_type": family}, where="")
    absent = set() if job.qkv_bias else {"self_attention.linear_qkv.bias"}
    absent |= set() if job.qk_layernorm else {name for name in INSIDE if "k_lay" in name}
    absent |= set() if job.qk_layernorm else {name for name in INSIDE if "q_lay" in name}
    names = PARAMETERS + [
        f"decoder.layers.{layer}.{name}"
        for layer in range(2)
        for name in INSIDE
        if name not in absent
    ]
    used = [tensor for name in names for tensor in origin(name).tensors]
    assert sorted(used) == sorted(tensor_shapes(job))


def test_fused_norms_of_transformer_engine_are_the_same_tensors():
    for fused, plain in (
        ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
        ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
    ):
        assert origin(LAYER + fused) == origin(LAYER + plain)


def test_joins_differ():
    assert origin(f"{LAYER}mlp.linear_fc1.weight").joined is Joined.STACKED
    assert origin(f"{LAYER}self_attention.linear_qkv.weight").joined is Joined.BY_GROUP


def test_unknown_parameters_and_shapes_without_vocabulary_are_our_fault():
    with pytest.raises(ContractError, match=r"parameter decoder\.layers\.1\.mlp\.router"):
        origin(f"{LAYER}mlp.router.weight")
    job = model_of_config(CONFIG, where="").model_copy(update={"vocab_size": None})
    with pytest.raises(ContractError, match="vocab_size"):
        tensor_shapes(job)
