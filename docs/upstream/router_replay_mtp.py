"""MTP's routers join RouterReplay's list of layers. See router_replay_mtp.md."""

import sys

from megapack.layout.granularity import ParallelSizes
from megapack.parallel.context import ParallelContext
from megapack.parallel.runtime import install_cpu_runtime, start_process_group


def fault_is_present() -> bool:
    """Whether a router of an MTP layer expects routes of its own."""
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.moe.router_replay import RouterReplay
    from megatron.core.transformer.transformer_config import TransformerConfig

    context = ParallelContext.initialize(ParallelSizes(), seed=0)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        num_moe_experts=4,
        moe_enable_routing_replay=True,
        moe_token_dispatcher_type="alltoall",
    )
    before = len(RouterReplay.global_router_replay_instances)
    for is_mtp_layer in (False, True):
        TopKRouter(config, pg_collection=context.collection, is_mtp_layer=is_mtp_layer)
    found = len(RouterReplay.global_router_replay_instances) - before
    RouterReplay.clear_global_router_replay_instances()
    context.destroy()
    return found == len(("decoder", "mtp"))


if __name__ == "__main__":
    start_process_group(rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    install_cpu_runtime()
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
