"""Loss on the validation split: one sum over one count, over all rows and ranks.

Tokens are counted by the same head and schedule as in training. Rows that do not divide over the
dp ranks are completed with filler rows, which weigh nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from megapack.batch.iterate import step_batch
from megapack.engine.rows import RowSource
from megapack.engine.schedule import Phase, SchedulePlan, run_schedule
from megapack.outputs.head import OutputHead
from megapack.parallel.context import ParallelContext
from megapack.store.manifest import Split

_ROWS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluation gave, equal on all ranks.

    Attributes:
        loss: the head's mean in nats, None when the split has no target.
        num_target_tokens: positions whose label counted.
        num_rows: rows read.
    """

    loss: float | None
    num_target_tokens: int
    num_rows: int


def evaluate(
    chunks: Sequence[Any],
    source: RowSource,
    context: ParallelContext,
    *,
    head: OutputHead,
    max_rows: int,
    rows_per_microbatch: int = 1,
) -> Evaluation | None:
    """Collective over the world: loss on the first rows of the validation split.

    Args:
        chunks: model chunks, not wrapped.
        source: rows of the dataset.
        context: this rank.
        head: the loss, as in training.
        max_rows: rows to read at most, over all dp ranks.
        rows_per_microbatch: packed rows that one forward takes; does not change the numbers.

    Returns:
        The evaluation, None when the dataset has no validation rows.
    """
    numbers = source.numbers(Split.VALIDATION, max_rows)
    if not numbers:
        return None
    loss_sum, num_target_tokens, divisor = 0.0, 0, 0
    at_once = _ROWS_AT_ONCE * context.sizes.dp
    with evaluating(chunks):
        for begin in range(0, len(numbers), at_once):
            mine = numbers[begin : begin + at_once][context.dp_rank :: context.sizes.dp]
            batch = step_batch(
                source.read(Split.VALIDATION, mine),
                context=context,
                row_length=source.row_length,
                granularity=source.granularity,
                rows_per_microbatch=rows_per_microbatch,
            )
            plan = SchedulePlan(step=batch, head=head, phase=Phase.FORWARD_ONLY)
            result = run_schedule(chunks, plan, context)
            loss_sum += result.loss_sum
            num_target_tokens += result.num_target_tokens
            divisor += result.divisor
    return Evaluation(
        loss=loss_sum / divisor if divisor else None,
        num_target_tokens=num_target_tokens,
        num_rows=len(numbers),
    )


@contextmanager
def evaluating(chunks: Sequence[Any]) -> Iterator[None]:
    """Evaluation mode inside the block; each chunk's own mode afterwards."""
    modes = [chunk.training for chunk in chunks]
    try:
        for chunk in chunks:
            chunk.eval()
        yield
    finally:
        for chunk, mode in zip(chunks, modes, strict=True):
            chunk.train(mode)
