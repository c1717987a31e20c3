"""Which frames of a video are taken.

Every frame can be drawn. The published sampler never takes the last frame of a part, and drops the
parts altogether as soon as one of them has a single frame.
"""

import numpy as np

from megapack.multimodal.config import FrameRule, FrameSampling


def frame_indices(
    num_frames: int, sampling: FrameSampling, generator: np.random.Generator
) -> list[int]:
    """Frames to take, ascending, each at most once.

    A number n is drawn between `min_frames` and `max_frames`. A video of at most n frames gives all
    of them; a longer one is cut into n parts as equal as can be, and gives one frame of each.

    >>> sampling = FrameSampling(min_frames=2, max_frames=2, rule=FrameRule.MIDDLE)
    >>> frame_indices(10, sampling, np.random.default_rng(0))
    [2, 7]

    Args:
        num_frames: frames of the video.
        sampling: how many, and which.
        generator: moved on by one draw, and by one more for RANDOM in a longer video.

    Returns:
        Frame numbers from 0.
    """
    wanted = int(generator.integers(sampling.min_frames, sampling.max_frames + 1))
    if num_frames <= wanted:
        return list(range(num_frames))
    borders = np.arange(wanted + 1, dtype=np.int64) * num_frames // wanted
    firsts, ends = borders[:-1], borders[1:]
    if sampling.rule is FrameRule.MIDDLE:
        return [int(frame) for frame in (firsts + ends - 1) // 2]
    return [int(frame) for frame in generator.integers(firsts, ends)]
