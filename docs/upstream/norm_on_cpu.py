"""torch's float32 norm is wrong on a CPU for large tensors. See norm_on_cpu.md."""

import sys

import torch

_ROUNDING = 1e-5


def fault_is_present() -> bool:
    """Whether the norm of ten million numbers is off by more than a float32 can be."""
    values = torch.randn(10_000_000, generator=torch.Generator().manual_seed(1))
    exact = values.double().square().sum().sqrt()
    return abs(float(torch.norm(values).double() / exact - 1)) > _ROUNDING


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
