"""float64 gradients times a float32 reciprocal. See gradients_by_float32_reciprocal.md."""

import sys
from typing import Any

import torch
import torch.distributed as dist

from megapack.parallel.runtime import install_cpu_runtime


class _Chunk(torch.nn.Module):
    """A model with one gradient, of one."""

    def __init__(self, config: Any) -> None:  # noqa: ANN401 - upstream type
        super().__init__()
        self.config = config
        self.gradient = torch.ones(1, dtype=torch.float64)

    def finish_grad_sync(self, **_: object) -> None:
        """One rank."""

    def scale_gradients(self, factor: torch.Tensor) -> None:
        """What a gradient buffer does."""
        self.gradient *= factor


def fault_is_present() -> bool:
    """Whether a gradient of one over three tokens is further from 1/3 than float64 is."""
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.transformer_config import TransformerConfig

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    world = dist.group.WORLD
    chunk = _Chunk(TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1))
    finalize_model_grads(
        [chunk],
        torch.tensor([3], dtype=torch.int32),
        ProcessGroupCollection(tp=world, pp=world, embd=None, pos_embd=None, dp_cp=world),
    )
    return float(chunk.gradient) != 1 / 3


if __name__ == "__main__":
    install_cpu_runtime()
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
