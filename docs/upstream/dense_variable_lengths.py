"""variable_seq_lengths is refused for dense models. See dense_variable_lengths.md."""

import sys

from megatron.core.transformer.transformer_config import TransformerConfig


def fault_is_present() -> bool:
    """Whether a dense configuration with variable lengths raises for its token dispatcher."""
    try:
        TransformerConfig(
            num_layers=1, hidden_size=8, num_attention_heads=1, variable_seq_lengths=True
        )
    except ValueError as error:
        return "allgather" in str(error)
    return False


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
