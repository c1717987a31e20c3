"""One step's microbatches on this rank: equal counts on all dp ranks, one row length.

A dp rank with fewer rows than the others gets filler rows, which hold no document, weigh nothing
and keep every collective of the step matched.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from megapack.batch.microbatch import MicroBatch
from megapack.batch.normalizer import StepNormalizer, normalize_step
from megapack.batch.thd import to_microbatch
from megapack.errors import ContractError
from megapack.layout.granularity import Granularity
from megapack.parallel.collectives import all_reduce
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow, filler_row

Stage = Callable[[MicroBatch], MicroBatch]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepBatch:
    """The microbatches of one step on this rank.

    Attributes:
        rows: this dp rank's rows, filler rows last.
        context: this rank.
        row_length: positions of every row.
        normalizer: counts of the step over all dp ranks.
        stages: what each microbatch goes through when it is made, in this order.
    """

    rows: tuple[PackedRow, ...]
    context: ParallelContext
    row_length: int
    normalizer: StepNormalizer
    stages: tuple[Stage, ...] = ()

    @property
    def num_microbatches(self) -> int:
        """Rows of this rank, equal on all ranks."""
        return len(self.rows)

    @property
    def microbatches(self) -> Iterator[MicroBatch]:
        """A fresh iterator; tensors are made one microbatch at a time."""
        return (self._through_stages(to_microbatch(row, self.context)) for row in self.rows)

    def _through_stages(self, microbatch: MicroBatch) -> MicroBatch:
        for stage in self.stages:
            microbatch = stage(microbatch)
        return microbatch


def step_batch(
    rows: Sequence[PackedRow],
    *,
    context: ParallelContext,
    row_length: int,
    granularity: Granularity,
) -> StepBatch:
    """Collective over dp_group: agree on the number of microbatches and count the step.

    Args:
        rows: this dp rank's rows; may be empty; the same on its tp, cp and pp ranks.
        context: this rank.
        row_length: positions of every row of the dataset.
        granularity: multiples of the dataset.

    Raises:
        ContractError: a row has another length.
    """
    for row in rows:
        if row.layout.row_length != row_length:
            raise ContractError(
                f"step_batch: expected rows of {row_length} positions, found one of "
                f"{row.layout.row_length} (documents {row.document_ids[:3]})."
            )
    own = torch.tensor(len(rows), dtype=torch.int64, device=context.device)
    most = int(all_reduce(own, context.dp_group, op=dist.ReduceOp.MAX))
    filler = filler_row(row_length=row_length, granularity=granularity)
    return StepBatch(
        rows=(*rows, *[filler] * (most - len(rows))),
        context=context,
        row_length=row_length,
        normalizer=normalize_step(rows, context),
    )
