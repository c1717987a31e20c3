"""Split sizes stay tensors on a CPU. See split_sizes_on_cpu.md."""

import sys

import torch

from megapack.parallel import cpu_device


def fault_is_present() -> bool:
    """Whether a tensor on the CPU is not made the array that was asked for."""
    from megatron.core.transformer.moe.moe_utils import maybe_move_tensor_to_cpu

    sizes = torch.tensor([1, 2])
    ours = cpu_device.host_numbers(sizes, as_numpy=True)
    return not isinstance(maybe_move_tensor_to_cpu(sizes, as_numpy=True), type(ours))


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
