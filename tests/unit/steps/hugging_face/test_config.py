"""config.json to ModelJob: what it says, and what is refused by name."""

import pytest

from megapack.errors import ConfigError
from megapack.jobs.model import RopeScalingJob, TrainPrecision
from megapack.steps.hugging_face.config import model_of_config
from tests.support.hf_folder import CONFIG

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def model(**changes):
    return model_of_config({**CONFIG, **changes}, where="m/config.json")


def test_every_field_of_the_shape_is_taken():
    found = model(head_dim=16, initializer_range=0.1, torch_dtype="bfloat16")
    assert found.model_dump(exclude={"rope_scaling"}, exclude_unset=True) == {
        "num_layers": 2,
        "hidden_size": 32,
        "ffn_hidden_size": 48,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "kv_channels": 16,
        "vocab_size": 107,
        "rotary_base": 500000,
        "qkv_bias": False,
        "norm_epsilon": 1e-5,
        "tie_embeddings": False,
        "qk_layernorm": False,
        "init_std": 0.1,
        "precision": TrainPrecision.BF16,
    }


@pytest.mark.parametrize(
    ("family", "bias", "norm", "head_dim"),
    [
        ("llama", False, False, 8),
        ("mistral", False, False, 8),
        ("qwen2", True, False, 8),
        ("qwen3", False, True, 128),
    ],
)
def test_families_differ_in_biases_norms_and_default_head(family, bias, norm, head_dim):
    found = model(model_type=family)
    assert (found.qkv_bias, found.qk_layernorm, found.head_dim) == (bias, norm, head_dim)


def test_rotary_settings_are_read_in_both_forms_of_transformers():
    old = model(rope_scaling=LLAMA3)
    new = model(rope_theta=None, rope_parameters={**LLAMA3, "rope_theta": 500000.0})
    assert old == new
    assert old.rope_scaling == RopeScalingJob(
        factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=8192
    )
    assert old.model_dump_json() == new.model_dump_json()


def test_absent_key_value_heads_are_as_many_as_heads():
    assert model(num_key_value_heads=None).num_query_groups == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma2"}, r"model_type to be one of llama.*found 'gemma2'"),
        ({"hidden_act": "gelu"}, r"hidden_act = 'silu', found 'gelu'"),
        ({"attention_bias": True}, r"attention_bias = False, found True.*o_proj"),
        ({"mlp_bias": True}, r"mlp_bias = False, found True"),
        ({"attention_dropout": 0.1}, r"attention_dropout = 0, found 0.1"),
        ({"use_sliding_window": True}, r"use_sliding_window = False, found True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, r"found sliding_attention"),
        ({"model_type": "mistral", "sliding_window": 4096}, r"sliding_window = null, found 4096"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor = 1, found 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, r"rope_parameters.*found 0.5"),
        ({"quantization_config": {"bits": 4}}, r"quantization_config.*dequantise"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, r"rope_type.*found 'yarn'"),
        ({"rope_scaling": {**LLAMA3, "factor": None}}, r"expected factor, found none"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, r"expected more than low_freq"),
        ({"rope_scaling": {"factor": 4.0}}, r"rope_type beside factor = 4.0, found none"),
        ({"rope_scaling": "linear"}, r"one rotary embedding for all layers, found 'linear'"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
            r"one rotary embedding for all layers, found {'full_attention'",
        ),
        (
            {"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 1e6}},
            r"rope_parameters or rope_scaling, found both",
        ),
        ({"torch_dtype": {"text": "float32"}}, r"expected dtype.*found \"{'text'"),
        ({"hidden_size": None}, r"m/config.json: expected hidden_size, found none"),
        ({"num_key_value_heads": 3}, r"multiple of num_query_groups = 3"),
        ({"torch_dtype": "float8_e4m3fn"}, r"expected dtype.*found 'float8_e4m3fn'"),
    ],
)
def test_what_a_model_job_cannot_say_is_refused_by_name(change, message):
    with pytest.raises(ConfigError, match=message):
        model(**change)


def test_qwen_windows_that_are_switched_off_are_no_windows():
    windowed = {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 1}
    assert model(model_type="qwen2", **windowed) == model(model_type="qwen2")
