"""Which document stands where: the rows of both sides, planned over lengths alone.

Letters: M places of documents in rows, in row order; R rows, the training side's first.
"""

from dataclasses import dataclass

import numpy as np

from megapack.layout.pack_layout import padded_lengths
from megapack.layout.runs import Int32, Int64
from megapack.packing.config import PackAlgorithm, PackConfig
from megapack.packing.given import plan_as_given
from megapack.packing.planner import plan_rows, shuffled
from megapack.packing.row_plan import RowPlan
from megapack.packing.rows import positions_of
from megapack.packing.stream import plan_stream
from megapack.steps.admission import Side
from megapack.steps.document_index import DocumentIndex
from megapack.store.manifest import Split
from megapack.store.schema import PackedInfo


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Documents by place.

    Attributes:
        document: int32 [M], document number in the index at each place.
        offsets: int64 [R + 1]; row r holds places `offsets[r]` to `offsets[r + 1]`.
        first_held_out: first row of the validation side.
    """

    document: Int32
    offsets: Int64
    first_held_out: int

    @property
    def num_rows(self) -> int:
        """R."""
        return int(self.offsets.size - 1)

    def split(self, row: int) -> Split:
        """Side of a row."""
        return Split.TRAIN if row < self.first_held_out else Split.VALIDATION


def place_documents(
    index: DocumentIndex, sides: tuple[Side, Side], *, info: PackedInfo, config: PackConfig
) -> Placement:
    """Plan the rows of both sides.

    Rows of the fewest are stored in a seeded order; those of one pass or as given keep theirs.

    Args:
        index: all documents.
        sides: documents to place on the training side, then on the validation side; one that is
            placed twice is listed twice.
        info: row length and multiples.
        config: algorithm, and seed of the stored order.
    """
    plans = [_plan(index, side, info=info, config=config) for side in sides]
    documents = [side[plan.document] for side, plan in zip(sides, plans, strict=True)]
    first, second = (plan.offsets for plan in plans)
    return Placement(
        document=np.concatenate(documents).astype(np.int32, copy=False),
        offsets=np.concatenate([first, second[1:] + first[-1]]),
        first_held_out=plans[0].num_rows,
    )


def _plan(index: DocumentIndex, side: Side, *, info: PackedInfo, config: PackConfig) -> RowPlan:
    positions = positions_of(index.num_tokens[side].astype(np.int64), info.row_length)
    slots = padded_lengths(positions, info.segment_granularity)
    match config.algorithm:
        case PackAlgorithm.STREAMING:
            return plan_stream(slots, info.row_length)
        case PackAlgorithm.AS_GIVEN:
            return plan_as_given(index.given[side], slots, info.row_length).plan
        case PackAlgorithm.BEST:
            return shuffled(plan_rows(slots, info.row_length), config.seed)
