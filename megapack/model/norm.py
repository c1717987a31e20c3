"""RMSNorm on any device, right under sequence parallelism.

megatron-core's WrappedTorchNorm refuses sequence parallelism. What it takes is one attribute on
the weight: finalize_model_grads then sums its gradient over the tensor parallel ranks, each of
which has seen only its part of the row.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit


class PortableRMSNorm(torch.nn.Module):
    """Root mean square norm over the last dimension.

    Args:
        config: megatron-core's TransformerConfig.
        hidden_size: size of the last dimension.
        eps: added to the mean square.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5) -> None:  # noqa: ANN401 - upstream type
        super().__init__()
        self.eps = eps
        self.zero_centered = bool(config.layernorm_zero_centered_gamma)
        fill = torch.zeros if self.zero_centered else torch.ones
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        self.weight = torch.nn.Parameter(
            fill(hidden_size, dtype=config.params_dtype, device=device)
        )
        # Read by finalize_model_grads.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise `x` [..., hidden_size], same shape and dtype out."""
        weight = self.weight + 1 if self.zero_centered else self.weight
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)
