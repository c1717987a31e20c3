"""WrappedTorchNorm asserts under sequence parallelism. See the page of this name."""

import sys

from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_config import TransformerConfig


def fault_is_present() -> bool:
    """Whether constructing the norm is refused."""
    config = TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=2,
        normalization="RMSNorm",
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        persist_layer_norm=False,
    )
    try:
        WrappedTorchNorm(config, 8)
    except AssertionError as error:
        return "sequence parallel" in str(error)
    return False


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
