"""Generators of what is drawn for one sample.

Each is a function of the job's seed and of which sample it is, so what is drawn depends neither on
ranks, workers nor what was read before. No global generator is read or moved.
"""

from enum import StrEnum
from hashlib import blake2b

import numpy as np

from megapack.records.digest import canonical_json
from megapack.records.multimodal_sample import SampleRef


class DrawPurpose(StrEnum):
    """What is drawn: a sample's content (caption, stretch, frames), or how it is written."""

    CONTENT = "content"
    WRITING = "writing"


def sample_generator(
    seed: int, epoch: int, ref: SampleRef, purpose: DrawPurpose
) -> np.random.Generator:
    """A generator for one sample and purpose.

    Args:
        seed: of the job; 0 is a seed like any other.
        epoch: from 0.
        ref: which sample, and in which reading.
        purpose: draws for one do not move those for another.

    Returns:
        A new generator, the same for the same arguments on every machine.
    """
    key = canonical_json(
        [seed, epoch, ref.group, ref.source, ref.file, ref.row, ref.reading, purpose.value]
    )
    entropy = int.from_bytes(blake2b(key, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.PCG64(entropy))
