"""transformers forgets packed documents when a cache is on. See packed_positions_with_cache.md."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

_LENGTHS = (5, 7)
_CLOSE = 1e-4


def fault_is_present() -> bool:
    """Whether the second of two packed documents sees the first one with `use_cache` alone."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 64, (1, sum(_LENGTHS)))
    positions = torch.cat([torch.arange(length) for length in _LENGTHS])[None]
    second = slice(_LENGTHS[0], None)

    def gap(*, use_cache: bool) -> float:
        """Largest difference of the second document's logits from those it has alone."""
        packed = model(input_ids=ids, position_ids=positions, use_cache=use_cache).logits
        alone = model(input_ids=ids[:, second], use_cache=False).logits
        return float((packed[:, second] - alone).abs().max())

    with torch.no_grad():
        return gap(use_cache=False) < _CLOSE < gap(use_cache=True)


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
