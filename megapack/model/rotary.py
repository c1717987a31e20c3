"""Llama 3's rotary frequencies with all four of its numbers.

GPTModel hands on the factor alone and takes the other three from Llama 3.1.
"""

import math
from typing import Any

import torch

from megapack.jobs.model import RopeScalingJob


def scale_rotary(
    rotary: Any,  # noqa: ANN401 - upstream type
    scaling: RopeScalingJob,
) -> None:
    """Stretch the frequencies of megatron-core's RotaryEmbedding in place, before its first call.

    Args:
        rotary: made without scaling.
        scaling: which frequencies, and how far.
    """
    rotary.inv_freq = scaled_frequencies(rotary.inv_freq, scaling)


def scaled_frequencies(frequencies: torch.Tensor, scaling: RopeScalingJob) -> torch.Tensor:
    """Frequencies after scaling, same shape and dtype.

    Args:
        frequencies: radians per position.
        scaling: the four numbers.
    """
    # How often each frequency turns within the context of the first training.
    turns = scaling.original_max_position / (2 * math.pi / frequencies)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    between = (1 - kept) * frequencies / scaling.factor + kept * frequencies
    scaled = torch.where(turns < scaling.low_freq_factor, frequencies / scaling.factor, between)
    return torch.where(turns > scaling.high_freq_factor, frequencies, scaled)
