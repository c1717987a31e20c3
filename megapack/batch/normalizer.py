"""Counts of a whole step, taken from whole rows.

They serve metrics, sequence-mean losses and the check for a step without targets. The divisor of
gradients is megatron-core's own (it sums rank-local counts over dp x cp); a test holds the two
equal.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from megapack.parallel.collectives import sum_counts
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNormalizer:
    """Counts over all dp ranks.

    Attributes:
        num_rows: rows that hold a document.
        num_documents: documents in them.
        num_real_tokens: real positions.
        num_target_tokens: positions whose label counts.
        num_tokens: positions of all microbatches, padding and filler included.
        num_target_documents: documents with a position whose label counts.
    """

    num_rows: int
    num_documents: int
    num_real_tokens: int
    num_target_tokens: int
    num_tokens: int
    num_target_documents: int


def normalize_step(
    rows: Iterable[PackedRow], context: ParallelContext, *, num_tokens: int
) -> StepNormalizer:
    """Collective over dp_group: one exact sum of this rank's counts.

    Args:
        rows: this dp rank's rows of the step; the same on its tp, cp and pp ranks.
        context: this rank.
        num_tokens: positions of this dp rank's microbatches.
    """
    counts = [0, 0, 0, 0, num_tokens, 0]
    for row in rows:
        counts[0] += row.layout.num_segments > 0
        counts[1] += row.layout.num_segments
        counts[2] += row.num_real_tokens
        counts[3] += row.num_target_tokens
        counts[5] += int((row.targets_by_document() > 0).sum())
    totals = sum_counts(counts, context.dp_group, device=context.device)
    return StepNormalizer(
        num_rows=totals[0],
        num_documents=totals[1],
        num_real_tokens=totals[2],
        num_target_tokens=totals[3],
        num_tokens=totals[4],
        num_target_documents=totals[5],
    )
