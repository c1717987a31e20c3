"""Later pipeline stages do not cut the padding mask. See later_stage_padding_mask.md."""

import inspect
import sys
from types import SimpleNamespace

import torch


def fault_is_present() -> bool:
    """Whether a stage that embeds nothing hands on the mask of the whole row."""
    from megatron.core.models.gpt import GPTModel

    stage = SimpleNamespace(
        pre_process=False,
        position_embedding_type="none",
        config=SimpleNamespace(
            sequence_parallel=True,
            tensor_model_parallel_size=2,
            multi_latent_attention=False,
            flash_decode=False,
            cuda_graph_impl="none",
            use_mup=False,
        ),
        training=True,
    )
    mask = torch.zeros(1, 8, dtype=torch.bool)
    names = inspect.signature(GPTModel._preprocess).parameters
    inputs = dict.fromkeys(name for name in names if name in ("input_ids", "position_ids"))
    found = GPTModel._preprocess(stage, **inputs, padding_mask=mask)
    return any(part is mask for part in found)


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
