"""A distributed optimizer without parameters on a rank cannot be saved. See the page."""

import sys
from types import SimpleNamespace

import torch


def fault_is_present() -> bool:
    """Whether `state_dict` fails for an optimizer that has no state."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    inner = torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.zeros(1))]}])
    inner.param_groups[0]["params"].clear()
    stage = SimpleNamespace(optimizer=inner, grad_scaler=None)
    try:
        DistributedOptimizer.state_dict(stage)
    except AssertionError:
        return True
    return False


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
