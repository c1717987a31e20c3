"""Position ids of patches: where a patch lies in its image, as row * side + column.

EXTRAPOLATE counts rows and columns from the upper left, so an image takes the corner of a grid of
`side` by `side`. INTERPOLATE spreads rows and columns over the whole grid: patch i of n lies in the
cell that holds i/n when the unit length is cut into `side` cells, each with its lower border.

Interpolated ids are computed in whole numbers, floor(i * side / n). The published function adds up
float32 steps, and with a side of 70 its rounding puts patches of images of 25, 49, 50 and 55
patches a side that begin on a border into the cell before (patch 15 of 25: cell 41, not 42).
"""

from functools import lru_cache

import numpy as np

from megapack.errors import ContractError
from megapack.multimodal.config import PatchPositions
from megapack.records.multimodal_sample import Int32


@lru_cache(maxsize=4096)
def patch_positions(high: int, wide: int, side: int, rule: PatchPositions) -> Int32:
    """Position ids of the patches of one image, row by row.

    >>> patch_positions(2, 2, 70, PatchPositions.EXTRAPOLATE).tolist()
    [0, 1, 70, 71]
    >>> patch_positions(2, 2, 70, PatchPositions.INTERPOLATE).tolist()
    [0, 35, 2450, 2485]

    Args:
        high: patches from top to bottom, 1 to `side`.
        wide: patches from left to right, 1 to `side`.
        side: cells of the grid's side.
        rule: how rows and columns are numbered.

    Returns:
        int32 [high * wide], below side^2; read-only, as it is kept for the next image of that size.

    Raises:
        ContractError: the image has more patches a side than the grid, so ids would collide.
    """
    if not (1 <= high <= side and 1 <= wide <= side):
        raise ContractError(
            f"patch positions: expected 1 to {side} patches a side, found {high} high and {wide} "
            "wide. Images are to be resized or left out before."
        )
    rows, columns = (np.arange(count, dtype=np.int32) for count in (high, wide))
    if rule is PatchPositions.INTERPOLATE:
        rows, columns = rows * side // high, columns * side // wide
    ids = (rows[:, None] * side + columns).ravel()
    ids.flags.writeable = False
    return ids
