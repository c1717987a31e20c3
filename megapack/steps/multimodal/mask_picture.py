"""Who sees whom in a row, as a small picture: black is not seen, colours are modes of what is."""

import numpy as np
from PIL import Image

from megapack.multimodal.attention import mask_columns, mask_from_columns
from megapack.records.multimodal_row import MultimodalRow
from megapack.records.multimodal_sample import AttentionMode

_MASK = 256
MODES = {
    AttentionMode.CAUSAL: (59, 120, 195),
    AttentionMode.FULL: (60, 160, 90),
    AttentionMode.NOISE: (230, 140, 40),
}


def mask_picture(row: MultimodalRow) -> Image.Image:
    """The mask of the row at evenly spread positions, each 1 pixel, small rows enlarged."""
    count = min(_MASK, row.length)
    chosen = np.arange(count) * row.length // count
    seen = mask_from_columns(mask_columns(row, row.length)[:, chosen])
    modes = np.repeat(
        np.array([MODES[mode] for mode in row.attention_modes], np.uint8).reshape(-1, 3),
        row.split_lengths,
        axis=0,
    )[chosen]
    picture = np.where(seen[:, :, None], modes[None, :, :], np.uint8(16)).astype(np.uint8)
    image = Image.fromarray(picture)
    times = max(1, _MASK // count)
    return image.resize((count * times, count * times), Image.Resampling.NEAREST)
