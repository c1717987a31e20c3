"""megatron-core's settings for experts, and what a router needs to know about padding and loss.

Router losses are attached to the routers' outputs by megatron-core, not returned by a head. Its
per-token contract then divides them by the step's *target* tokens, although it has multiplied
them by *routed* tokens. `begin_router_step` puts that right.

What a router loss means here: the load balancing loss of a microbatch looks at all its real
tokens, over cp and tp; a step's loss is the mean over its microbatches (those of all dp ranks),
weighted by their real tokens. It therefore depends on which rows share a microbatch, but not on
tp, cp, pp, ep, padding or the share of supervised tokens. The z-loss is a mean over real tokens,
and does not depend on the microbatches either.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from megapack.jobs.moe import MoeJob, RouterWeights
from megapack.parallel.collectives import all_reduce
from megapack.parallel.context import ParallelContext
from megapack.parallel.lm_head import wide

if TYPE_CHECKING:
    from megapack.model.router import PackedRouter


def expert_settings(moe: MoeJob | None, *, num_layers: int, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments of TransformerConfig that concern experts.

    Args:
        moe: experts of the model, None for a dense one.
        num_layers: transformer layers of the whole model.
        dtype: of the parameters; routers compute in float32, in float64 for a float64 model.
    """
    # Rows of several lengths need it even in a dense model, where nothing is dispatched.
    dispatcher = {"moe_token_dispatcher_type": "alltoall"}
    if moe is None:
        return dispatcher
    layers = [0] * moe.num_dense_layers + [1] * (num_layers - moe.num_dense_layers)
    return {
        **dispatcher,
        "num_moe_experts": moe.num_experts,
        "moe_layer_freq": layers,
        "moe_ffn_hidden_size": moe.expert_ffn_hidden_size,
        "moe_shared_expert_intermediate_size": moe.shared_expert_ffn_hidden_size,
        "moe_router_topk": moe.experts_per_token,
        "moe_router_score_function": moe.score_function.value,
        "moe_router_pre_softmax": moe.weights is RouterWeights.ALL,
        "moe_router_topk_scaling_factor": None if moe.weights_scale == 1.0 else moe.weights_scale,
        "moe_router_load_balancing_type": "aux_loss" if moe.aux_loss_coefficient else "none",
        "moe_aux_loss_coeff": moe.aux_loss_coefficient,
        "moe_z_loss_coeff": moe.z_loss_coefficient or None,
        "moe_router_enable_expert_bias": moe.expert_bias_update_rate is not None,
        "moe_router_bias_update_rate": moe.expert_bias_update_rate or 0.0,
        "moe_router_dtype": "fp64" if dtype == torch.float64 else "fp32",
        "moe_grouped_gemm": False,
        "moe_permute_fusion": False,
    }


def begin_router_step(chunks: Sequence[Any], *, num_real: int, num_targets: int) -> None:
    """Make this step's router losses a mean over real tokens, whatever the share of targets.

    Args:
        chunks: model chunks of this rank, wrapped or not.
        num_real: real tokens of the step over all dp ranks: what the routers' losses count.
        num_targets: target tokens of the step: what gradients are divided by.
    """
    ratio = num_targets / max(num_real, 1)
    for chunk in chunks:
        if chunk.config.num_moe_experts is not None:
            like = next(chunk.parameters())
            scale = torch.tensor([ratio], device=like.device, dtype=wide(like.dtype))
            chunk.config.moe_grad_scale_func = lambda scale=scale: scale
            _forget_scale()
            for router in routers(chunk):
                router.reset()


def _forget_scale() -> None:
    """Upstream copies each scale into the first one of the process, in that one's dtype."""
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

    MoEAuxLossAutoScaler.main_loss_backward_scale = None


def router_losses(
    chunks: Sequence[Any], context: ParallelContext, *, num_real: int
) -> dict[str, float]:
    """Collective over the world: the step's router losses, a mean over layers and real tokens.

    Without their coefficients: a load balancing loss of 1 is perfect balance. Empty for a dense
    model, or one whose routers have no loss.

    Args:
        chunks: model chunks of this rank, wrapped or not.
        context: this rank.
        num_real: real tokens of the step over all dp ranks.
    """
    config = chunks[0].config
    names = {
        "router_balance_loss": config.num_moe_experts and config.moe_aux_loss_coeff,
        "router_z_loss": config.num_moe_experts and config.moe_z_loss_coeff,
    }
    if not any(names.values()):
        return {}
    sums = torch.zeros(2, dtype=torch.float64, device=context.device)
    for chunk in chunks:
        for router in routers(chunk):
            sums += 0.0 if router.sums is None else router.sums
    total = all_reduce(sums, dist.group.WORLD).tolist()
    counted = max(num_real, 1) * (sum(config.moe_layer_freq) + (config.mtp_num_layers or 0))
    return {
        name: value / counted
        for (name, used), value in zip(names.items(), total, strict=True)
        if used
    }


def routers(chunk: Any) -> "Iterator[PackedRouter]":  # noqa: ANN401 - upstream type
    """The routers of a model chunk, in the order of its layers."""
    from megapack.model.router import PackedRouter

    for module in chunk.modules():
        if isinstance(module, PackedRouter):
            yield module
