"""A microbatch of padding makes routers' gradients NaN. See router_without_tokens.md."""

import sys

import torch
import torch.distributed as dist

from megapack.parallel.runtime import install_cpu_runtime, start_process_group


def fault_is_present() -> bool:
    """Whether the load balancing loss of padding alone has a gradient that is not a number."""
    from megatron.core.process_groups_config import ProcessGroupCollection
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
    world = dist.group.WORLD
    groups = ProcessGroupCollection(tp=world, cp=world, tp_cp=world, tp_dp_cp=world)
    router = TopKRouter(config, pg_collection=groups)
    logits = torch.randn(6, 1, 4, requires_grad=True)
    weights, _ = router.routing(logits, padding_mask=torch.ones(6, 1, dtype=torch.bool))
    (weights * 0.0).sum().backward()
    return logits.grad is None or bool(logits.grad.isnan().any())


if __name__ == "__main__":
    start_process_group(rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    install_cpu_runtime()
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
