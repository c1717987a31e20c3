"""Saved parameters behind a padded bucket are shifted. See bucket_padding.md."""

import sys

import torch

from megapack.layout.granularity import ParallelSizes
from megapack.parallel.context import ParallelContext
from megapack.parallel.runtime import install_cpu_runtime, start_process_group


def fault_is_present() -> bool:
    """Whether a parameter is saved with other values than it has."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    context = ParallelContext.initialize(ParallelSizes(), seed=0)
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)

    class Model(MegatronModule):
        def __init__(self) -> None:
            super().__init__(config)
            # Buckets are filled from the last parameter on: 64 elements, padded to 128.
            self.embedding = torch.nn.Linear(8, 8, bias=False)
            self.layer = torch.nn.Linear(8, 8, bias=False)
            # As on the first of several pipeline stages with a tied embedding.
            self.embedding.weight.shared_embedding = True

    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True)
    model = DistributedDataParallel(config, ddp, Model())
    settings = OptimizerConfig(lr=0.1, use_distributed_optimizer=True)
    optimizer = get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)
    optimizer.step()
    inner = (
        optimizer.chained_optimizers[0] if hasattr(optimizer, "chained_optimizers") else optimizer
    )
    places = {
        name: ShardedTensor.from_rank_offsets(name, parameter)
        for name, parameter in model.module.named_parameters()
    }
    saved = inner.sharded_param_state_fully_reshardable(places, metadata={})
    context.destroy()
    weight = model.module.embedding.weight.detach()
    by_key = {tensors["param"].key: tensors["param"].data for tensors in saved.values()}
    return not torch.equal(by_key["optimizer.state.param.embedding.weight"], weight)


if __name__ == "__main__":
    start_process_group(rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    install_cpu_runtime()
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
