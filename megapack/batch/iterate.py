"""One step's microbatches on this rank: equal counts on all dp ranks.

A dp rank with fewer microbatches than the others gets filler, which holds no document, weighs
nothing and keeps every collective of the step matched. Microbatches come from packed rows
(`step_batch`), from the same rows as dense batches (`dense_step`), or from groups of documents
that a caller chose (`step_of_groups`; `microbatches_of` is the same without a step around it).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from megapack.batch.budget import groups_within_budget
from megapack.batch.documents import PositionedDocument, documents_of, lengths_of
from megapack.batch.join import groups_of, join_rows
from megapack.batch.microbatch import MicroBatch
from megapack.batch.normalizer import StepNormalizer, normalize_step
from megapack.batch.recipe import BatchKind, BatchRecipe, build_microbatch, lay_documents
from megapack.errors import ContractError
from megapack.layout.granularity import Granularity
from megapack.parallel.collectives import all_reduce
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow, filler_row

Stage = Callable[[MicroBatch], MicroBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """Shape of the activations that pipeline stages exchange.

    Attributes:
        length: positions along the row, not divided by cp or tp.
        rows: rows beside one another.
    """

    length: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepBatch:
    """The microbatches of one step on this rank.

    Attributes:
        rows: one row a microbatch, in the geometry that the microbatch has; filler last.
        context: this rank.
        row_length: positions of the longest microbatch.
        normalizer: counts of the step over all dp ranks.
        kind: what the model takes.
        stages: what each microbatch goes through when it is made, in this order.
    """

    rows: tuple[PackedRow, ...]
    context: ParallelContext
    row_length: int
    normalizer: StepNormalizer
    kind: BatchKind = BatchKind.PACKED
    stages: tuple[Stage, ...] = ()

    @property
    def num_microbatches(self) -> int:
        """Microbatches of this rank, equal on all ranks."""
        return len(self.rows)

    @property
    def microbatches(self) -> Iterator[MicroBatch]:
        """A fresh iterator; tensors are made one microbatch at a time."""
        return (
            self._through_stages(build_microbatch(row, self.kind, self.context))
            for row in self.rows
        )

    @property
    def shape(self) -> StepShape | None:
        """What pipeline stages exchange, None when it differs between microbatches."""
        shapes = {_shape(row, self.kind) for row in self.rows}
        return shapes.pop() if len(shapes) == 1 else None

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
    rows_per_microbatch: int = 1,
) -> StepBatch:
    """Collective over dp_group: agree on the number of microbatches and count the step.

    Args:
        rows: this dp rank's rows; may be empty; the same on its tp, cp and pp ranks.
        context: this rank.
        row_length: positions of every row of the dataset.
        granularity: multiples of the dataset.
        rows_per_microbatch: rows that one forward takes, joined to one.

    Raises:
        ContractError: a row has another length.
    """
    for row in rows:
        if row.layout.row_length != row_length:
            raise ContractError(
                f"step_batch: expected rows of {row_length} positions, found one of "
                f"{row.layout.row_length} (documents {row.document_ids[:3]})."
            )
    most = _most(-(-len(rows) // rows_per_microbatch), context)
    filler = filler_row(row_length=row_length, granularity=granularity)
    whole = (*rows, *[filler] * (most * rows_per_microbatch - len(rows)))
    joined = tuple(join_rows(group) for group in groups_of(whole, rows_per_microbatch))
    return StepBatch(
        rows=joined,
        context=context,
        row_length=row_length * rows_per_microbatch,
        normalizer=normalize_step(rows, context, num_tokens=len(whole) * row_length),
    )


def dense_step(
    rows: Sequence[PackedRow],
    *,
    context: ParallelContext,
    token_budget: int,
    granularity: Granularity,
) -> StepBatch:
    """Collective over dp_group: the documents of the rows as dense batches of varying shape.

    Args:
        rows: this dp rank's rows; may be empty.
        context: this rank; its cp must be 1.
        token_budget: most positions of a microbatch, padding included.
        granularity: multiples that the run needs.

    Raises:
        ConfigError: a document is over the budget.
    """
    documents = documents_of(rows)
    groups = groups_within_budget(
        lengths_of(documents), budget=token_budget, multiple=granularity.row
    )
    return step_of_groups(
        [[documents[i] for i in group] for group in groups],
        BatchRecipe(kind=BatchKind.DENSE, granularity=granularity),
        context,
    )


def step_of_groups(
    groups: Sequence[Sequence[PositionedDocument]], recipe: BatchRecipe, context: ParallelContext
) -> StepBatch:
    """Collective over dp_group: a step of microbatches that the caller has put together.

    Args:
        groups: this dp rank's documents, one group a microbatch; may be empty.
        recipe: kind and lengths.
        context: this rank.

    Raises:
        ConfigError: a constant length does not hold a group.
    """
    most = _most(len(groups), context)
    own = [lay_documents(group, recipe) for group in groups]
    laid = own + [lay_documents((), recipe)] * (most - len(own))
    return StepBatch(
        rows=tuple(laid),
        context=context,
        row_length=max((row.layout.row_length for row in laid), default=0),
        normalizer=normalize_step(
            own, context, num_tokens=sum(row.layout.row_length for row in laid)
        ),
        kind=recipe.kind,
    )


def microbatches_of(
    groups: Iterable[Sequence[PositionedDocument]], recipe: BatchRecipe, context: ParallelContext
) -> Iterator[MicroBatch]:
    """One microbatch for each group of documents, as they come; nothing is read ahead.

    Args:
        groups: of documents; may be endless.
        recipe: kind and lengths.
        context: this rank.
    """
    for group in groups:
        yield build_microbatch(lay_documents(group, recipe), recipe.kind, context)


def _most(count: int, context: ParallelContext) -> int:
    """Collective over dp_group: the largest count."""
    own = torch.tensor(count, dtype=torch.int64, device=context.device)
    return int(all_reduce(own, context.dp_group, op=dist.ReduceOp.MAX))


def _shape(row: PackedRow, kind: BatchKind) -> StepShape:
    length = row.layout.row_length
    if kind is not BatchKind.DENSE:
        return StepShape(length=length, rows=1)
    width = row.layout.granularity.segment
    return StepShape(length=width, rows=length // width)
