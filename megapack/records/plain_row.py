"""`PlainRow`: the documents of a row end to end, without any padding, labels not shifted.

This is what Hugging Face models take: they shift the labels themselves, so `labels[t]` is
`input_ids[t]` where that token is supervised, and the first token of a document never is. A
document whose last token is only a label in the packed row has that token here as an input too.
Letters: N documents, L = sum of their tokens.
"""

from dataclasses import dataclass

import numpy as np

from megapack.layout.pack_layout import IGNORE_INDEX
from megapack.layout.runs import Bool, Int32, Int64
from megapack.records.packed_row import PackedRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainRow:
    """Documents end to end.

    Attributes:
        tokens: int32 [L].
        supervised: bool [L], token-aligned: True at tokens that are learnt.
        lengths: int32 [N], tokens of each document, each >= 1; their sum is L.
    """

    tokens: Int32
    supervised: Bool
    lengths: Int32

    @property
    def starts(self) -> Int64:
        """int64 [N]: where each document begins."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    def labels(self) -> Int64:
        """int64 [L], token-aligned: the token itself where it is learnt, else IGNORE_INDEX."""
        return np.where(self.supervised, self.tokens, IGNORE_INDEX).astype(np.int64)

    def position_ids(self) -> Int64:
        """int64 [L], restarting at 0 in every document."""
        return np.arange(self.tokens.size, dtype=np.int64) - np.repeat(self.starts, self.lengths)


def plain_row(row: PackedRow) -> PlainRow:
    """The documents of a packed row, without padding and with token-aligned supervision."""
    counted = row.loss_mask()
    tokens, supervised, lengths = [], [], []
    for start, length in zip(
        row.layout.slot_starts.tolist(), row.layout.lengths.tolist(), strict=True
    ):
        own = row.tokens[start : start + length]
        learnt = np.zeros(length, dtype=np.bool_)
        learnt[1:] = counted[start : start + length - 1]
        if row.final_label is not None:
            own = np.append(own, np.int32(row.final_label))
            learnt = np.append(learnt, counted[start + length - 1])
        tokens.append(own)
        supervised.append(learnt)
        lengths.append(own.size)
    return PlainRow(
        tokens=np.concatenate([*tokens, np.zeros(0, np.int32)]).astype(np.int32),
        supervised=np.concatenate([*supervised, np.zeros(0, np.bool_)]),
        lengths=np.array(lengths, dtype=np.int32),
    )
