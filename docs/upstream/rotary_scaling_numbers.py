"""GPTModel takes one of the four numbers of Llama 3's scaling. See rotary_scaling_numbers.md."""

import inspect
import sys
from types import SimpleNamespace

import torch

from megapack.jobs.model import RopeScalingJob
from megapack.model.rotary import scaled_frequencies
from megapack.parallel.runtime import install_cpu_runtime

_HEAD = 64


def fault_is_present() -> bool:
    """Whether a model first trained on 4096 positions gets the frequencies of one on 8192."""
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.gpt import GPTModel

    taken = {name for name in inspect.signature(GPTModel).parameters if "scaling" in name}
    one = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    plain, scaled = (
        RotaryEmbedding(_HEAD, 1.0, rope_scaling=on, use_cpu_initialization=True, cp_group=one)
        for on in (False, True)
    )
    fixed, wanted = (
        scaled_frequencies(
            plain.inv_freq,
            RopeScalingJob(
                factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=first
            ),
        )
        for first in (8192, 4096)
    )
    return (
        taken == {"rope_scaling", "rope_scaling_factor"}
        and torch.allclose(scaled.inv_freq, fixed)
        and not torch.allclose(scaled.inv_freq, wanted)
    )


if __name__ == "__main__":
    install_cpu_runtime()
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
