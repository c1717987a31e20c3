"""Who sees whom in a row: a mask for each sample, or three columns that say the same.

A query q sees a key k of its own sample when k stands at or before it, or when both lie in one
split that is seen whole (FULL and NOISE); but a key in a NOISE split is seen from that split only.
In a mask, True means that the query of the row sees the key of the column.

Padding counts as a sample of its own in which each position sees those before it and itself: no
query sees nothing, and no sample sees padding.

Letters: L positions of a row, T positions with padding, n positions of a sample.
"""

import numpy as np

from megapack.errors import ContractError
from megapack.records.multimodal_row import MultimodalRow
from megapack.records.multimodal_sample import AttentionMode, Bool, Int32


def nested_masks(row: MultimodalRow) -> tuple[Bool, ...]:
    """Masks of the samples of a row, bool [n, n] each."""
    masks: list[Bool] = []
    bounds = np.searchsorted(row.split_samples, np.arange(len(row.sample_lengths) + 1))
    for number, length in enumerate(row.sample_lengths.tolist()):
        mask = np.tri(length, dtype=np.bool_)
        start = 0
        for split in range(int(bounds[number]), int(bounds[number + 1])):
            end = start + int(row.split_lengths[split])
            mode = row.attention_modes[split]
            if mode is not AttentionMode.CAUSAL:
                mask[start:end, start:end] = True
            if mode is AttentionMode.NOISE:
                mask[end:, start:end] = False
            start = end
        masks.append(mask)
    return tuple(masks)


def mask_columns(row: MultimodalRow, padded_length: int) -> Int32:
    """What a mask is made of, for each position.

    Args:
        row: with L positions.
        padded_length: T, at least L.

    Returns:
        int32 [3, T]: number of the sample of each position (S at padding); of its split where the
        split is seen whole (FULL and NOISE), else -1; of its split where no other sees it (NOISE),
        else -1.

    Raises:
        ContractError: T is less than L.
    """
    if padded_length < row.length:
        raise ContractError(
            f"mask_columns: expected a padded length of at least {row.length}, found "
            f"{padded_length}."
        )
    columns = np.full((3, padded_length), -1, dtype=np.int32)
    columns[0, row.length :] = len(row.sample_lengths)
    numbers = np.arange(len(row.split_lengths), dtype=np.int32)
    whole = np.array([mode is not AttentionMode.CAUSAL for mode in row.attention_modes], np.bool_)
    noise = np.array([mode is AttentionMode.NOISE for mode in row.attention_modes], np.bool_)
    for column, values in zip(
        columns,
        (row.split_samples, np.where(whole, numbers, -1), np.where(noise, numbers, -1)),
        strict=True,
    ):
        column[: row.length] = np.repeat(values, row.split_lengths)
    return columns


def mask_from_columns(columns: Int32) -> Bool:
    """The mask over all positions that the columns say.

    Args:
        columns: int32 [3, T], see `mask_columns`.

    Returns:
        bool [T, T].
    """
    sample, whole, noise = columns
    place = np.arange(sample.size)
    before = place[:, None] >= place
    together = (whole[:, None] == whole) & (whole >= 0)
    hidden = (noise >= 0) & (noise[:, None] != noise)
    seen: Bool = (before | together) & ~hidden & (sample[:, None] == sample)
    return seen
