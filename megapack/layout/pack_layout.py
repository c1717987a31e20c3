"""`PackLayout`: the geometry of one packed row, from which everything else is derived.

Letters: N segments in the row, T = row_length.

Two kinds of offsets are kept apart for good: `cu_seqlens` cumulates *real* lengths and is no
offset into the row; `cu_seqlens_padded` cumulates *slot* lengths and is. Labels, masks and
positions come from here alone, so that reader, audit and inspect cannot disagree.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError
from megapack.layout.granularity import Granularity
from megapack.layout.runs import Bool, Int32, Int64, mask_of_runs
from megapack.layout.zigzag import CpBalance, zigzag_index

IGNORE_INDEX = -100
"""The one sentinel for a label that does not count."""


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

    def __post_init__(self) -> None:
        lengths = np.array(self.lengths, dtype=np.int32).reshape(-1)
        lengths.flags.writeable = False
        object.__setattr__(self, "lengths", lengths)
        if self.row_length < 1 or self.row_length % self.granularity.row:
            raise ContractError(
                f"PackLayout.row_length = {self.row_length}, expected a positive multiple of row "
                f"granularity {self.granularity.row}."
            )
        bad = np.flatnonzero(lengths < 1)
        if bad.size:
            raise ContractError(
                f"PackLayout.lengths[{int(bad[0])}] = {int(lengths[bad[0]])}, expected at least 1."
            )
        used = int(self.padded_lengths.sum(dtype=np.int64))
        if used > self.row_length:
            raise ContractError(
                f"PackLayout: the slots of {lengths.size} segments cover {used} positions, "
                f"expected at most row_length = {self.row_length}."
            )

    @property
    def padded_lengths(self) -> Int32:
        """int32 [N]: slot lengths, each a multiple of the segment granularity."""
        return padded_lengths(self.lengths, self.granularity.segment)

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
        return int(self.padded_lengths.sum(dtype=np.int64))

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
        return _cumulate(self.padded_lengths)

    @property
    def slot_starts(self) -> Int32:
        """int32 [N]: row position at which each segment begins."""
        return self.cu_seqlens_padded[:-1]

    def position_ids(self) -> Int64:
        """int64 [T]: restart at 0 at each slot and run on through its padding.

        The tail counts from 0 as one more slot.
        """
        starts, counts = self._stretches()
        return np.arange(self.row_length, dtype=np.int64) - np.repeat(starts, counts)

    def segment_ids(self) -> Int32:
        """int32 [T]: slot index of each position; the tail has index N."""
        _, counts = self._stretches()
        return np.repeat(np.arange(self.num_segments + 1, dtype=np.int32), counts)

    def padding_mask(self) -> Bool:
        """bool [T]: True at padding (slot padding and tail)."""
        edges = np.zeros(self.row_length + 1, dtype=np.int8)
        starts = self.slot_starts.astype(np.int64)
        edges[starts] += 1
        edges[starts + self.lengths] -= 1
        mask: Bool = np.cumsum(edges[:-1], dtype=np.int8) == 0
        return mask

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
        flat = np.asarray(tokens, dtype=np.int64)
        following = np.empty_like(flat)
        following[:-1] = flat[1:]
        following[-1] = IGNORE_INDEX if final_label is None else final_label
        return np.where(self.loss_mask(target_runs), following, np.int64(IGNORE_INDEX))

    def cp_index(
        self, *, cp_size: int, cp_rank: int, balance: CpBalance = CpBalance.PER_SEGMENT
    ) -> Int64:
        """int64 [T / cp_size]: row positions that a context parallel rank owns, in local order.

        Raises:
            ConfigError: a slot, the tail or the row cannot be cut into 2*cp_size chunks.
        """
        if balance is CpBalance.PER_ROW:
            return zigzag_index([0, self.row_length], cp_size=cp_size, cp_rank=cp_rank)
        offsets = self.cu_seqlens_padded.astype(np.int64)
        if self.tail_length:
            offsets = np.append(offsets, self.row_length)
        return zigzag_index(offsets, cp_size=cp_size, cp_rank=cp_rank)

    def _stretches(self) -> tuple[Int64, Int64]:
        """Starts and lengths of the slots and of the tail, int64 [N+1] each."""
        starts = self.cu_seqlens_padded.astype(np.int64)
        return starts, np.diff(np.append(starts, self.row_length))


def _cumulate(lengths: Int32) -> Int32:
    offsets = np.zeros(lengths.size + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
