"""Written items of a row as columns, from which every index of the row is derived.

Letters: K written items (spans) of a row, in order; L its positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from megapack.errors import ContractError
from megapack.records.multimodal_sample import (
    Bool,
    Float32,
    Int32,
    LaidSample,
    PlanItem,
    SpanKind,
    UInt8,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Columns of the written items.

    Attributes:
        items: K, what they are.
        pixels: K, uint8 [h, w, 3] of an image, None for text.
        samples: int32 [K], number of the sample in the row.
        starts: int32 [K], first position in the row.
        lengths: int32 [K], positions.
        positions: int32 [K], position id of the first token.
        timesteps: float32 [K].
        text: bool [K].
        vit: bool [K].
        vae: bool [K].
        loss: bool [K].
        heads: bool [K], True where a split begins.
    """

    items: tuple[PlanItem, ...]
    pixels: tuple[UInt8 | None, ...]
    samples: Int32
    starts: Int32
    lengths: Int32
    positions: Int32
    timesteps: Float32
    text: Bool
    vit: Bool
    vae: Bool
    loss: Bool
    heads: Bool

    @classmethod
    def of(cls, laid: Sequence[LaidSample]) -> Self:
        """Spans of samples that stand one after the other.

        Raises:
            ContractError: a sample of which nothing is written, or without its pixels.
        """
        items: list[PlanItem] = []
        pixels: list[UInt8 | None] = []
        for one in laid:
            shown = iter(_pixels_by_item(one))
            for item, kept, picture in zip(one.sample.items, one.kept, shown, strict=True):
                if kept:
                    items.append(item)
                    pixels.append(picture)
        kinds = [item.kind for item in items]
        counts = [int(np.count_nonzero(one.kept)) for one in laid]
        lengths = np.concatenate([one.lengths[one.kept] for one in laid])
        return cls(
            items=tuple(items),
            pixels=tuple(pixels),
            samples=np.repeat(np.arange(len(laid), dtype=np.int32), counts),
            starts=(np.cumsum(lengths) - lengths).astype(np.int32),
            lengths=lengths,
            positions=np.concatenate([one.positions[one.kept] for one in laid]),
            timesteps=np.concatenate([one.timesteps[one.kept] for one in laid]),
            text=np.array([kind is SpanKind.TEXT for kind in kinds], dtype=np.bool_),
            vit=np.array([kind is SpanKind.VIT for kind in kinds], dtype=np.bool_),
            vae=np.array([kind is SpanKind.VAE for kind in kinds], dtype=np.bool_),
            loss=np.array([item.loss for item in items], dtype=np.bool_),
            heads=np.array([not item.joins for item in items], dtype=np.bool_),
        )

    def grid_index(self, chosen: Bool) -> Int32:
        """Positions of the patches or latents of chosen images, ascending."""
        return joined_ranges(self.starts[chosen] + 1, self.lengths[chosen] - 2)


def joined_ranges(starts: Int32, lengths: Int32) -> Int32:
    """Whole numbers from each start on, `lengths` of them, one stretch after the other.

    >>> joined_ranges(np.array([3, 9]), np.array([2, 3])).tolist()
    [3, 4, 9, 10, 11]
    """
    total = int(lengths.sum())
    offsets = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return (offsets + np.arange(total)).astype(np.int32)


def _pixels_by_item(laid: LaidSample) -> list[UInt8 | None]:
    """Pixels of each item of a sample, None for text.

    Raises:
        ContractError: nothing is written, or pixels are missing or of another size.
    """
    sample = laid.sample
    images = [item for item in sample.items if item.kind is not SpanKind.TEXT]
    shapes = [(item.height, item.width, 3) for item in images]
    if not laid.kept.any() or [picture.shape for picture in sample.pixels] != shapes:
        raise ContractError(
            f"assemble: expected samples of which something is written, with pixels {shapes}, "
            f"found {np.count_nonzero(laid.kept)} written items and pixels "
            f"{[picture.shape for picture in sample.pixels]} in group {sample.ref.group}, "
            f"{sample.ref.file}, row {sample.ref.row}. Decode the pixels first."
        )
    pictures = iter(sample.pixels)
    return [None if item.kind is SpanKind.TEXT else next(pictures) for item in sample.items]
