"""The tail of a row as megatron-core takes it: padding segments up to the row's end.

megatron-core cuts rotary positions at the padded offsets, so these must cover the row. The tail is
handed over as segments of real length 0, none longer than the longest slot, so that `max_seqlen`
stays what the documents need. Letters: N segments, M segments of the tail, T = row_length.
"""

from dataclasses import dataclass

import numpy as np

from megapack.layout.pack_layout import PackLayout
from megapack.layout.runs import Int32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CoveringOffsets:
    """Offsets that cover a row to its end.

    Attributes:
        real: int32 [N+M+1], cumulated real lengths; the tail adds none.
        padded: int32 [N+M+1], offsets into the row, from 0 to T.
        longest: longest segment, in positions.
    """

    real: Int32
    padded: Int32
    longest: int


def covering_offsets(layout: PackLayout) -> CoveringOffsets:
    """Offsets of the slots and of the tail; a filler row is one padding segment.

    >>> from megapack.layout.granularity import Granularity
    >>> fours = Granularity(segment=4, row=4)
    >>> offsets = covering_offsets(PackLayout(row_length=16, lengths=[7], granularity=fours))
    >>> offsets.real.tolist(), offsets.padded.tolist()
    ([0, 7, 7], [0, 8, 16])
    """
    tail = tail_segments(layout)
    return CoveringOffsets(
        real=_offsets(np.append(layout.lengths, np.zeros_like(tail))),
        padded=_offsets(np.append(layout.padded_lengths, tail)),
        longest=max(layout.max_seqlen, int(tail.max(initial=0))),
    )


def tail_segments(layout: PackLayout) -> Int32:
    """int32 [M]: lengths of the padding segments that cover the tail.

    Each is a multiple of the segment granularity and at most the longest slot; a filler row is
    one segment of T.

    >>> from megapack.layout.granularity import Granularity
    >>> fours = Granularity(segment=4, row=4)
    >>> tail_segments(PackLayout(row_length=32, lengths=[7, 5], granularity=fours)).tolist()
    [8, 8]
    """
    longest = layout.max_seqlen or layout.row_length
    whole, rest = divmod(layout.tail_length, longest)
    return np.array([longest] * whole + [rest] * (rest > 0), dtype=np.int32)


def _offsets(lengths: Int32) -> Int32:
    cumulated = np.zeros(lengths.size + 1, dtype=np.int32)
    np.cumsum(lengths, out=cumulated[1:])
    return cumulated
