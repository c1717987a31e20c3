"""`PackLayout`: the geometry of one packed row, from which everything else is derived.

Letters: N segments in the row, T = row_length.

Two kinds of offsets are kept apart for good: `cu_seqlens` cumulates *real* lengths and is no
offset into the row; `cu_seqlens_padded` cumulates *slot* lengths and is. Labels, masks and
positions come from here alone, so that reader, audit and inspect cannot disagree.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError
from megapack.layout.granularity import Granularity
from megapack.layout.runs import Bool, Int32, Int64, fill_runs, locked, mask_of_runs
from megapack.layout.zigzag import CpBalance, zigzag_index

IGNORE_INDEX = -100
"""The one sentinel for a label that does not count."""


MOST_POSITIONS = 2**31 - 1
"""Positions of a row that its offsets, int32 as kernels want them, can address."""


def padded_lengths(lengths: npt.ArrayLike, segment_granularity: int) -> Int32:
    """Slot lengths: each length rounded up to the segment granularity.

    >>> padded_lengths([5, 3], 4).tolist()
    [8, 4]
    """
    flat = np.asarray(lengths, dtype=np.int64)
    return (-(-flat // segment_granularity) * segment_granularity).astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackLayout:
    """Real and slot lengths of the segments of one row.

    Attributes:
        row_length: T, positions in the row; a multiple of `granularity.row`.
        lengths: int32 [N], real positions of each segment, each >= 1. N = 0 is a filler row.
        granularity: multiples of slots and row.
    """

    row_length: int
    lengths: Int32
    granularity: Granularity
    _slots: Int32 = field(init=False, repr=False)
    _offsets: Int64 = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lengths = locked(self.lengths)
        object.__setattr__(self, "lengths", lengths)
        if not 0 < self.row_length <= MOST_POSITIONS or self.row_length % self.granularity.row:
            raise ContractError(
                f"PackLayout.row_length = {self.row_length}, expected a positive multiple of row "
                f"granularity {self.granularity.row} that offsets of 32 bits can address."
            )
        if lengths.size and lengths.min() < 1:
            bad = int(np.flatnonzero(lengths < 1)[0])
            raise ContractError(
                f"PackLayout.lengths[{bad}] = {int(lengths[bad])}, expected at least 1."
            )
        # Kept, because offsets are asked for by everything that is derived from a layout.
        slots = locked(padded_lengths(lengths, self.granularity.segment))
        offsets = np.zeros(lengths.size + 1, dtype=np.int64)
        np.cumsum(slots, dtype=np.int64, out=offsets[1:])
        object.__setattr__(self, "_slots", slots)
        object.__setattr__(self, "_offsets", offsets)
        used = int(offsets[-1])
        if used > self.row_length:
            raise ContractError(
                f"PackLayout: the slots of {lengths.size} segments cover {used} positions, "
                f"expected at most row_length = {self.row_length}."
            )

    @classmethod
    def trusted(
        cls,
        *,
        row_length: int,
        lengths: Int32,
        granularity: Granularity,
        slots: Int32,
        offsets: Int64,
    ) -> Self:
        """A layout whose caller has checked it, as a reader checks many rows at once.

        Args:
            row_length: T.
            lengths: int32 [N], read-only.
            granularity: multiples of slots and row.
            slots: int32 [N], `padded_lengths` of `lengths`, read-only.
            offsets: int64 [N+1], `slots` cumulated from 0.
        """
        layout = object.__new__(cls)
        for name, value in (
            ("row_length", row_length),
            ("lengths", lengths),
            ("granularity", granularity),
            ("_slots", slots),
            ("_offsets", offsets),
        ):
            object.__setattr__(layout, name, value)
        return layout

    @property
    def padded_lengths(self) -> Int32:
        """int32 [N]: slot lengths, each a multiple of the segment granularity."""
        return self._slots

    @property
    def num_segments(self) -> int:
        """N."""
        return int(self.lengths.size)

    @property
    def num_real_tokens(self) -> int:
        """Sum of the real lengths."""
        return int(self.lengths.sum(dtype=np.int64))

    @property
    def num_slot_tokens(self) -> int:
        """Positions that slots cover; the tail starts here."""
        return int(self._offsets[-1])

    @property
    def tail_length(self) -> int:
        """Positions after the last slot."""
        return self.row_length - self.num_slot_tokens

    @property
    def max_seqlen(self) -> int:
        """Longest slot, 0 for a filler row."""
        return int(self.padded_lengths.max(initial=0))

    @property
    def cu_seqlens(self) -> Int32:
        """int32 [N+1]: cumulated real lengths. Not an offset into the row."""
        return _cumulate(self.lengths)

    @property
    def cu_seqlens_padded(self) -> Int32:
        """int32 [N+1]: cumulated slot lengths, offsets into the row."""
        return self._offsets.astype(np.int32)

    @property
    def slot_starts(self) -> Int32:
        """int32 [N]: row position at which each segment begins."""
        return self.cu_seqlens_padded[:-1]

    def position_ids(self) -> Int64:
        """int64 [T]: restart at 0 at each slot and run on through its padding.

        The tail counts from 0 as one more slot.
        """
        positions = np.empty(self.row_length, dtype=np.int32)
        self.fill_position_ids(positions)
        return positions.astype(np.int64)

    def fill_position_ids(self, out: Int32) -> None:
        """Write `position_ids` into int32 [T]."""
        starts, counts = self._stretches()
        np.subtract(_ascending(self.row_length), np.repeat(starts, counts), out=out)

    def segment_ids(self) -> Int32:
        """int32 [T]: slot index of each position; the tail has index N."""
        _, counts = self._stretches()
        return np.repeat(np.arange(self.num_segments + 1, dtype=np.int32), counts)

    def padding_mask(self) -> Bool:
        """bool [T]: True at padding (slot padding and tail)."""
        real = np.empty(2 * self.num_segments, dtype=np.int64)
        real[0::2] = self._offsets[:-1]
        real[1::2] = self._offsets[:-1] + self.lengths
        return fill_runs(real, self.row_length, off=True, on=False)

    def loss_mask(self, target_runs: npt.ArrayLike) -> Bool:
        """bool [T], target-aligned: True where the label counts.

        Args:
            target_runs: int32 [2R], target-aligned runs over row positions.
        """
        return mask_of_runs(target_runs, self.row_length)

    def labels(
        self, tokens: npt.ArrayLike, target_runs: npt.ArrayLike, *, final_label: int | None = None
    ) -> Int64:
        """int64 [T], target-aligned: the next token where it counts, else `IGNORE_INDEX`.

        Args:
            tokens: int [T], token-aligned.
            target_runs: int32 [2R], target-aligned runs; none may cross a segment's last position.
            final_label: label of the row's last position, when its document has one token more
                than the row.
        """
        labels = np.empty(self.row_length, dtype=np.int32)
        flat = np.asarray(tokens, dtype=np.int32)
        self.fill_labels(flat, target_runs, out=labels, final_label=final_label)
        return labels.astype(np.int64)

    def fill_labels(
        self,
        tokens: Int32,
        target_runs: npt.ArrayLike,
        *,
        out: Int32,
        final_label: int | None = None,
    ) -> None:
        """Write `labels` into int32 [T], another array than `tokens`."""
        counted = fill_runs(target_runs, self.row_length, off=0, on=-1)
        # x ^ I, kept where `counted` has all bits and 0 elsewhere, then ^ I again: x or I. Three
        # plain passes; a choice by mask takes twice as long.
        np.bitwise_xor(tokens[1:], IGNORE_INDEX, out=out[:-1])
        out[-1] = 0 if final_label is None else final_label ^ IGNORE_INDEX
        np.bitwise_and(out, counted, out=out)
        np.bitwise_xor(out, IGNORE_INDEX, out=out)

    def cp_index(
        self, *, cp_size: int, cp_rank: int, balance: CpBalance = CpBalance.PER_SEGMENT
    ) -> Int64:
        """int64 [T / cp_size]: row positions that a context parallel rank owns, in local order.

        Raises:
            ConfigError: a slot, the tail or the row cannot be cut into 2*cp_size chunks.
        """
        if balance is CpBalance.PER_ROW:
            return zigzag_index([0, self.row_length], cp_size=cp_size, cp_rank=cp_rank)
        offsets = self._offsets
        if self.tail_length:
            offsets = np.append(offsets, self.row_length)
        return zigzag_index(offsets, cp_size=cp_size, cp_rank=cp_rank)

    def _stretches(self) -> tuple[Int32, Int64]:
        """Starts and lengths of the slots and of the tail, [N+1] each."""
        edges = np.empty(self._offsets.size + 1, dtype=np.int64)
        edges[:-1], edges[-1] = self._offsets, self.row_length
        return edges[:-1].astype(np.int32), edges[1:] - edges[:-1]


@lru_cache(maxsize=4)
def _ascending(length: int) -> Int32:
    """int32 [length]: 0, 1, 2, ...; kept for the few row lengths of a process."""
    return locked(np.arange(length, dtype=np.int32))


def _cumulate(lengths: Int32) -> Int32:
    offsets = np.zeros(lengths.size + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
