"""Flex attention cannot be trained through on a CPU. See flex_cpu_backward.md."""

import sys


def fault_is_present() -> bool:
    """Whether a forward that asks for gradients is refused."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.zeros(1, 1, 16, 16, requires_grad=True)
    try:
        flex_attention(q, q, q)
    except NotImplementedError:
        return True
    return False


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
