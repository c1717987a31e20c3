"""Router losses are multiplied by routed tokens, divided by targets. See router_loss_divisor.md."""

import sys
from types import SimpleNamespace

import torch

from megapack.parallel.runtime import install_cpu_runtime

_TOKENS = 8


def fault_is_present() -> bool:
    """Whether the gradient of a router loss grows as fewer tokens are supervised."""
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        num_moe_experts=4,
        moe_ffn_hidden_size=8,
        moe_aux_loss_coeff=0.1,
        calculate_per_token_loss=True,
    )
    one = SimpleNamespace(size=lambda: 1)
    groups = ProcessGroupCollection(tp=None, cp=one, tp_cp=one, tp_dp_cp=one)
    router = TopKRouter(config, pg_collection=groups)
    MoEAuxLossAutoScaler.set_loss_scale(torch.ones(1))
    gradients = []
    for targets in (_TOKENS, _TOKENS // 4):
        loss = torch.tensor(0.5, requires_grad=True)
        weights = router.attach_and_log_load_balancing_loss(
            torch.zeros(_TOKENS, 4), 0.1, loss, "loss", one, valid_token_count=_TOKENS
        )
        weights.sum().backward()
        # What finalize_model_grads does: num_tokens is what the loss function returned.
        gradients.append(float(loss.grad) / targets)
    return gradients[0] != gradients[1]


if __name__ == "__main__":
    install_cpu_runtime()
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
