"""After load_state_dict, all parameters share one `step` tensor. See shared_step.md."""

import sys

import torch

from megapack.layout.granularity import ParallelSizes
from megapack.parallel.context import ParallelContext
from megapack.parallel.runtime import install_cpu_runtime, start_process_group


def fault_is_present() -> bool:
    """Whether one update after loading advances `step` by more than one."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    context = ParallelContext.initialize(ParallelSizes(), seed=0)
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)

    class Model(MegatronModule):
        def __init__(self) -> None:
            super().__init__(config)
            self.first = torch.nn.Linear(8, 8, bias=False)
            self.second = torch.nn.Linear(8, 8, bias=False)

    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True)
    model = DistributedDataParallel(config, ddp, Model())
    settings = OptimizerConfig(lr=0.1, use_distributed_optimizer=True)
    optimizer = get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    steps = {float(state["step"]) for state in optimizer.optimizer.state.values()}
    context.destroy()
    return steps != {2.0}


if __name__ == "__main__":
    start_process_group(rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    install_cpu_runtime()
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
