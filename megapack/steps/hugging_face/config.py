"""`config.json` of a Hugging Face model to `ModelJob`, or a refusal that names the field.

Only fields that the model's class reads are looked at. What changes the numbers and cannot be
said in a ModelJob is refused: nothing is approximated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from megapack.errors import ConfigError
from megapack.jobs.explain import explain
from megapack.jobs.model import ModelJob, TrainPrecision

Config = Mapping[str, Any]

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_BASE = 10_000.0
_EPSILON = 1e-6
_PRECISIONS = {
    "float32": TrainPrecision.FP32,
    "bfloat16": TrainPrecision.BF16,
    "float16": TrainPrecision.BF16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """A field that must have one of some values.

    Attributes:
        field: of config.json.
        allowed: values that mean what a ModelJob means; the first is also what absence means.
        otherwise: what the reader can do.
    """

    field: str
    allowed: Sequence[object]
    otherwise: str


_ELSE = "megapack's layers have none; start from a model without"
_RULES = (
    _Rule(field="hidden_act", allowed=("silu",), otherwise="the MLP is SwiGLU"),
    _Rule(field="attention_bias", allowed=(False, None), otherwise=f"{_ELSE} (o_proj has one too)"),
    _Rule(field="mlp_bias", allowed=(False, None), otherwise=_ELSE),
    _Rule(field="attention_dropout", allowed=(0, None), otherwise="set it to 0 in config.json"),
    _Rule(field="use_sliding_window", allowed=(False, None), otherwise="attention is full"),
    _Rule(field="partial_rotary_factor", allowed=(1, None), otherwise="all channels are rotated"),
    _Rule(field="quantization_config", allowed=(None,), otherwise="dequantise the weights first"),
)


def model_of_config(config: Config, *, where: str) -> ModelJob:
    """The shape that a config.json describes.

    Args:
        config: its content.
        where: its path, for messages.

    Returns:
        A job whose precision is that of the weights (float16 becomes bf16).

    Raises:
        ConfigError: a field is missing, or says what a ModelJob cannot say.
    """
    family = _family(config, where)
    for rule in _RULES:
        _check(config, rule, where)
    _check_full_attention(config, family, where)
    need = _Needed(config=config, where=where)
    heads: int = need("num_attention_heads")
    rotary = _rotary(config, where)
    fields = {
        "num_layers": need("num_hidden_layers"),
        "hidden_size": need("hidden_size"),
        "ffn_hidden_size": need("intermediate_size"),
        "num_attention_heads": heads,
        "num_query_groups": config.get("num_key_value_heads") or heads,
        "kv_channels": _kv_channels(config, family, heads),
        "vocab_size": need("vocab_size"),
        "norm_epsilon": config.get("rms_norm_eps", _EPSILON),
        "tie_embeddings": config.get("tie_word_embeddings", False),
        "qkv_bias": family == "qwen2",
        "qk_layernorm": family == "qwen3",
        "init_std": config.get("initializer_range", 0.02),
        "precision": _precision(config, where),
        **rotary,
    }
    try:
        return ModelJob.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(f"{where} describes no model:\n{explain(error, ModelJob)}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needed:
    """Fields without which there is no model."""

    config: Config
    where: str

    def __call__(self, field: str) -> Any:  # noqa: ANN401 - any JSON value
        if self.config.get(field) is None:
            raise ConfigError(
                f"{self.where}: expected {field}, found none. Name the folder that "
                "save_pretrained wrote."
            )
        return self.config[field]


def _family(config: Config, where: str) -> str:
    found = config.get("model_type")
    if found not in _FAMILIES:
        raise ConfigError(
            f"{where}: expected model_type to be one of {', '.join(_FAMILIES)}, found {found!r}. "
            "Only these can be starting models."
        )
    return str(found)


def _check(config: Config, rule: _Rule, where: str) -> None:
    found = config.get(rule.field, rule.allowed[0])
    if found not in rule.allowed:
        raise ConfigError(
            f"{where}: expected {rule.field} = {rule.allowed[0]!r}, found {found!r}: "
            f"{rule.otherwise}."
        )


def _check_full_attention(config: Config, family: str, where: str) -> None:
    kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    if kinds:
        raise ConfigError(
            f"{where}: expected layer_types of full_attention only, found "
            f"{', '.join(sorted(map(str, kinds)))}: attention is full in every layer."
        )
    # Qwen configurations hold a window that use_sliding_window switches on; Mistral's always is.
    if family == "mistral" and config.get("sliding_window") is not None:
        raise ConfigError(
            f"{where}: expected sliding_window = null, found {config['sliding_window']}: attention "
            "is full. Set it to null if no document is longer."
        )


def _kv_channels(config: Config, family: str, heads: int) -> int | None:
    """Width of a head where it is not hidden_size / heads; Qwen3's own default is 128."""
    found = config.get("head_dim") or (128 if family == "qwen3" else None)
    return None if found is None or found * heads == config["hidden_size"] else int(found)


def _precision(config: Config, where: str) -> TrainPrecision:
    found = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if found not in _PRECISIONS:
        raise ConfigError(
            f"{where}: expected dtype to be one of {', '.join(_PRECISIONS)}, found {found!r}."
        )
    return _PRECISIONS[found]


def _rotary(config: Config, where: str) -> dict[str, Any]:
    """Base and scaling, in the form of transformers 5 (rope_parameters) or of 4."""
    told = _rotary_parameters(config, where)
    base = told.get("rope_theta", config.get("rope_theta", _BASE))
    kind = told.get("rope_type", told.get("type", "default"))
    if kind not in _ROTARY:
        raise ConfigError(
            f"{where}: expected rope_type to be one of {', '.join(_ROTARY)}, found {kind!r}. "
            "Other kinds of scaling are not there."
        )
    partial = _Rule(field="partial_rotary_factor", allowed=(1, None), otherwise="it is whole")
    _check(told, partial, f"{where} (rope_parameters)")
    return {"rotary_base": base, "rope_scaling": _ROTARY[kind](told, where)}


def _rotary_parameters(config: Config, where: str) -> Config:
    """The one object that says the rotary embedding, empty when none does."""
    new, old = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    if new and old and new != old:
        raise ConfigError(
            f"{where}: expected rope_parameters or rope_scaling, found both, and they differ. "
            "Remove the one that is not meant."
        )
    told = new or old
    if not isinstance(told, Mapping) or any(isinstance(value, Mapping) for value in told.values()):
        raise ConfigError(
            f"{where}: expected rope_parameters of one rotary embedding for all layers, found "
            f"{told!r}."
        )
    if "factor" in told and not {"rope_type", "type"} & told.keys():
        raise ConfigError(
            f"{where}: expected a rope_type beside factor = {told['factor']}, found none: the "
            "factor's meaning depends on it."
        )
    return told


def _no_scaling(*_: object) -> None:
    return None


def _llama3_scaling(told: Config, where: str) -> dict[str, Any]:
    need = _Needed(config=told, where=f"{where} (rope_parameters)")
    return {
        "factor": need("factor"),
        "low_freq_factor": need("low_freq_factor"),
        "high_freq_factor": need("high_freq_factor"),
        "original_max_position": need("original_max_position_embeddings"),
    }


_ROTARY: Mapping[str, Callable[[Config, str], dict[str, Any] | None]] = {
    "default": _no_scaling,
    "llama3": _llama3_scaling,
}
