"""Shape of the model to train."""

from enum import StrEnum
from typing import Self

from pydantic import Field, field_validator, model_validator

from megapack.errors import ConfigError
from megapack.jobs.base import Job
from megapack.jobs.moe import MoeJob


class TrainPrecision(StrEnum):
    """Arithmetic of the model; bf16 keeps fp32 main parameters."""

    FP32 = "fp32"
    BF16 = "bf16"


class BackendName(StrEnum):
    """Which attention, norm and spec provider the model is built from.

    AUTO: PORTABLE, or TE on an installation that says it passed the GPU tests. TE: Transformer
    Engine (never run), as TE_EXACT or TE_SLOTS, whichever the device supports. TE_EXACT: attention
    is given true and padded offsets (Hopper, B200). TE_SLOTS: padded offsets only.
    """

    AUTO = "auto"
    PORTABLE = "portable"
    TE = "te"
    TE_EXACT = "te-exact"
    TE_SLOTS = "te-slots"


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass instead of being kept.

    SELECTIVE: core attention and the MLP or experts. FULL: every layer, from its input. Numbers
    are the same; only memory and time differ.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class RopeScalingJob(Job):
    """Llama 3's stretching of slow rotary frequencies; the numbers decide which and how far.

    Attributes:
        factor: slow frequencies are divided by it.
        low_freq_factor: wavelengths beyond original_max_position / this are stretched in full.
        high_freq_factor: wavelengths below original_max_position / this stay; between the two
            the change is gradual.
        original_max_position: context that the model was first trained for, in positions.
    """

    factor: float = Field(gt=0)
    low_freq_factor: float = Field(gt=0)
    high_freq_factor: float = Field(gt=0)
    original_max_position: int = Field(ge=1)

    @model_validator(mode="after")
    def _band_is_not_empty(self) -> Self:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"RopeScalingJob.high_freq_factor = {self.high_freq_factor}, expected more than "
                f"low_freq_factor = {self.low_freq_factor}."
            )
        return self


class OffloadModule(StrEnum):
    """Modules whose inputs can be kept on the host until the backward pass needs them."""

    ATTENTION_NORM = "attn_norm"
    QKV = "qkv_linear"
    CORE_ATTENTION = "core_attn"
    ATTENTION_OUTPUT = "attn_proj"
    MLP_NORM = "mlp_norm"
    EXPERTS = "expert_fc1"
    EXPERT_ACTIVATION = "moe_act"


def offload_fault(model: "ModelJob", backend: BackendName) -> str:
    """Why a backend cannot offload what a model asks for; empty when it can."""
    if not model.offload or backend not in (BackendName.AUTO, BackendName.PORTABLE):
        return ""
    names = ", ".join(module.value for module in model.offload)
    return (
        f"ModelJob.offload = {names} with backend = {backend.value}, expected backend = te: "
        "megatron-core copies activations with Transformer Engine. Ask for te by name, or leave "
        "offload empty and use recompute."
    )


class ModelJob(Job):
    """A decoder-only transformer with rotary positions, RMSNorm and SwiGLU.

    Attributes:
        num_layers: transformer layers.
        hidden_size: H.
        ffn_hidden_size: width of the gated MLP.
        num_attention_heads: query heads.
        num_query_groups: key/value heads.
        kv_channels: width of one head; hidden_size / num_attention_heads when None.
        vocab_size: rows of the vocabulary that exist; the dataset's when None.
        rotary_base: base of the rotary embedding.
        rope_scaling: how rotary frequencies are stretched, None for not at all.
        qkv_bias: biases on queries, keys and values, and nowhere else.
        norm_epsilon: epsilon of RMSNorm.
        tie_embeddings: share the input embedding with the LM head.
        qk_layernorm: RMSNorm on queries and keys.
        init_std: standard deviation of the weight initialisation.
        precision: arithmetic.
        vocab_multiple: the vocabulary is padded to a multiple of this times tp.
        moe: experts in place of the dense MLP; None for a dense model.
        mtp_num_layers: multi-token prediction layers: layer k predicts the token k + 1 ahead.
        mtp_loss_scale: weight of the mean loss of the multi-token prediction layers.
        recompute: activations that are not kept; does not change numbers.
        offload: activations that are kept on the host; does not change numbers. Needs the te
            backend; never run.
    """

    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=8)
    ffn_hidden_size: int = Field(ge=8)
    num_attention_heads: int = Field(ge=1)
    num_query_groups: int = Field(ge=1)
    kv_channels: int | None = Field(default=None, ge=2, multiple_of=2)
    vocab_size: int | None = Field(default=None, ge=1)
    rotary_base: int | float = Field(default=10_000, ge=1)
    rope_scaling: RopeScalingJob | None = None
    qkv_bias: bool = False
    norm_epsilon: float = Field(default=1e-5, gt=0)
    tie_embeddings: bool = False
    qk_layernorm: bool = False
    init_std: float = Field(default=0.02, gt=0)
    precision: TrainPrecision = TrainPrecision.FP32
    vocab_multiple: int = Field(default=128, ge=1)
    moe: MoeJob | None = None
    mtp_num_layers: int = Field(default=0, ge=0)
    mtp_loss_scale: float = Field(default=0.1, ge=0)
    recompute: Recompute = Recompute.NONE
    offload: tuple[OffloadModule, ...] = ()

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    def vocabulary(self, dataset_vocab_size: int) -> int:
        """Vocabulary of the model on a dataset.

        A model may have more rows than its tokenizer has tokens: they take part in the softmax,
        as they did when it was trained.

        Args:
            dataset_vocab_size: ids of the dataset lie below it.

        Raises:
            ConfigError: the dataset may hold ids that the model has no row for.
        """
        if self.vocab_size is None:
            return dataset_vocab_size
        if dataset_vocab_size > self.vocab_size:
            raise ConfigError(
                f"ModelJob.vocab_size = {self.vocab_size}, expected at least the dataset's "
                f"vocabulary of {dataset_vocab_size}: some ids would have no embedding. Pack the "
                "data with the model's own tokenizer."
            )
        return self.vocab_size

    @field_validator("rotary_base")
    @classmethod
    def _whole_base(cls, value: float) -> int | float:
        """500000.0 and 500000 are one value, also in digests."""
        return int(value) if float(value).is_integer() else value

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.kv_channels is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"ModelJob.hidden_size = {self.hidden_size}, expected a multiple of "
                f"num_attention_heads = {self.num_attention_heads}."
            )
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"ModelJob.num_attention_heads = {self.num_attention_heads}, expected a multiple "
                f"of num_query_groups = {self.num_query_groups}."
            )
        if self.moe is not None and self.moe.num_dense_layers >= self.num_layers:
            raise ValueError(
                f"MoeJob.num_dense_layers = {self.moe.num_dense_layers}, expected fewer than "
                f"num_layers = {self.num_layers}: no layer would have experts."
            )
        return self
