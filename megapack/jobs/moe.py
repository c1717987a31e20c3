"""Shape of the mixture-of-experts layers of a model."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from megapack.jobs.base import Job


class RouterScore(StrEnum):
    """How a router turns logits into scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


class RouterWeights(StrEnum):
    """What the weights of a token's chosen experts sum to.

    CHOSEN: 1 over the chosen ones (Mixtral; Qwen3-MoE with `norm_topk_prob`; with sigmoid scores,
    DeepSeek-V3). ALL: a softmax over all experts, so less than 1 over the chosen ones (OLMoE).
    """

    CHOSEN = "chosen"
    ALL = "all"


class MoeJob(Job):
    """Experts, their router, and the router's own losses.

    Attributes:
        num_experts: routed experts of a layer.
        experts_per_token: experts that each token is sent to.
        expert_ffn_hidden_size: width of one expert's gated MLP.
        shared_expert_ffn_hidden_size: width of the expert that every token passes; None for none.
        num_dense_layers: first layers whose MLP is the model's dense one.
        score_function: how logits become scores.
        weights: what the weights of the chosen experts sum to.
        weights_scale: factor on those weights.
        aux_loss_coefficient: weight of the load balancing loss, 0 for none.
        z_loss_coefficient: weight of the loss on the size of the logits, 0 for none.
        expert_bias_update_rate: step of the bias that balances experts without a loss; None for no
            bias. Needs sigmoid scores.
    """

    num_experts: int = Field(ge=2)
    experts_per_token: int = Field(ge=1)
    expert_ffn_hidden_size: int = Field(ge=8)
    shared_expert_ffn_hidden_size: int | None = Field(default=None, ge=8)
    num_dense_layers: int = Field(default=0, ge=0)
    score_function: RouterScore = RouterScore.SOFTMAX
    weights: RouterWeights = RouterWeights.CHOSEN
    weights_scale: float = Field(default=1.0, gt=0)
    aux_loss_coefficient: float = Field(default=0.0, ge=0)
    z_loss_coefficient: float = Field(default=0.0, ge=0)
    expert_bias_update_rate: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _router_can_choose(self) -> Self:
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"MoeJob.experts_per_token = {self.experts_per_token}, expected at most "
                f"num_experts = {self.num_experts}."
            )
        softmax = self.score_function is RouterScore.SOFTMAX
        if softmax and self.experts_per_token == 1 and self.weights is RouterWeights.CHOSEN:
            raise ValueError(
                "MoeJob.weights = chosen with experts_per_token = 1, expected all: the softmax "
                "over one chosen expert is 1 and gives the router no gradient."
            )
        if self.score_function is RouterScore.SIGMOID and self.weights is RouterWeights.ALL:
            raise ValueError(
                "MoeJob.weights = all with score_function = sigmoid, expected chosen: "
                "megatron-core divides sigmoid scores by their sum over the chosen experts."
            )
        if self.expert_bias_update_rate and self.score_function is not RouterScore.SIGMOID:
            raise ValueError(
                f"MoeJob.expert_bias_update_rate = {self.expert_bias_update_rate} with "
                f"score_function = {self.score_function.value}, expected sigmoid: megatron-core "
                "adds the bias to sigmoid scores only."
            )
        return self
