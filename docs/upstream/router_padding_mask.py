"""The router cannot count the tokens of experts beside padding. See router_padding_mask.md."""

import sys

import torch

from megapack.parallel.runtime import install_cpu_runtime


def fault_is_present() -> bool:
    """Whether the mask of padding, as `routing` passes it on, is refused by the expert bias."""
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        num_moe_experts=4,
        moe_ffn_hidden_size=8,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_load_balancing_type="none",
    )
    groups = ProcessGroupCollection(tp=None, cp=None, tp_cp=None, tp_dp_cp=None)
    router = TopKRouter(config, pg_collection=groups)
    padding = torch.tensor([False] * 4 + [True] * 2)[:, None]
    try:
        router.routing(torch.randn(6, 1, 4), padding_mask=padding)
    except RuntimeError as error:
        return "must match the size" in str(error)
    return False


if __name__ == "__main__":
    install_cpu_runtime()
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
