"""Setting a parameter's optimizer state without `step` fails. See missing_step.md."""

import sys

import torch

from megapack.layout.granularity import ParallelSizes
from megapack.parallel import patches
from megapack.parallel.context import ParallelContext
from megapack.parallel.runtime import install_cpu_runtime, start_process_group

PATCH = (
    "megatron.core.optimizer.distrib_optimizer:"
    "DistributedOptimizer._set_main_param_and_optimizer_states"
)


def fault_is_present() -> bool:
    """Whether tensors without `step`, as the checkpoint loader passes them, are refused."""
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

    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True)
    model = DistributedDataParallel(config, ddp, Model())
    settings = OptimizerConfig(lr=0.1, use_distributed_optimizer=True)
    optimizer = get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)
    optimizer.step()
    inner = (
        optimizer.chained_optimizers[0] if hasattr(optimizer, "chained_optimizers") else optimizer
    )
    zeros = dict.fromkeys(("param", "exp_avg", "exp_avg_sq"), torch.zeros(64))
    try:
        with torch.no_grad(), patches.without(PATCH):
            inner._set_main_param_and_optimizer_states(next(model.parameters()), zeros)
    except KeyError as error:
        return error.args == ("step",)
    finally:
        context.destroy()
    return False


if __name__ == "__main__":
    start_process_group(rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    install_cpu_runtime()
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
