"""Shape of the model to train."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

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
        rotary_base: base of the rotary embedding.
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
    rotary_base: int = Field(default=10_000, ge=1)
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

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
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
