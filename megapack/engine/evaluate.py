"""Loss on the validation split: one sum over one count, over all rows and ranks.

Tokens are counted by the same head and schedule as in training. Rows that do not divide over the
dp ranks are completed with filler rows, which weigh nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from megapack.batch.iterate import step_batch
from megapack.engine.payload_join import PayloadJoin
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
        metrics: the plan's means, by name; one over nothing is absent.
    """

    loss: float | None
    num_target_tokens: int
    num_rows: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvaluationPlan:
    """What to evaluate, and how.

    Attributes:
        head: the loss, as in training.
        max_rows: rows to read at most, over all dp ranks.
        rows_per_microbatch: packed rows that one forward takes; does not change the numbers.
        payloads: what the rows are joined with; None for nothing, and on ranks that need none.
        means: metrics of the head that are means over the step's divisor, to report as well.
    """

    head: OutputHead
    max_rows: int
    rows_per_microbatch: int = 1
    payloads: PayloadJoin | None = None
    means: tuple[str, ...] = ()


def evaluate(
    chunks: Sequence[Any], source: RowSource, context: ParallelContext, plan: EvaluationPlan
) -> Evaluation | None:
    """Collective over the world: loss on the first rows of the validation split.

    Args:
        chunks: model chunks, not wrapped.
        source: rows of the dataset.
        context: this rank.
        plan: what to evaluate.

    Returns:
        The evaluation, None when the dataset has no validation rows.
    """
    numbers = source.numbers(Split.VALIDATION, plan.max_rows)
    if not numbers:
        return None
    num_target_tokens, divisor = 0, 0
    sums = dict.fromkeys(("loss", *plan.means), 0.0)
    at_once = _ROWS_AT_ONCE * context.sizes.dp
    with evaluating(chunks):
        for begin in range(0, len(numbers), at_once):
            mine = numbers[begin : begin + at_once][context.dp_rank :: context.sizes.dp]
            rows = source.read(Split.VALIDATION, mine)
            batch = step_batch(
                rows,
                context=context,
                row_length=source.row_length,
                granularity=source.granularity,
                rows_per_microbatch=plan.rows_per_microbatch,
            )
            if plan.payloads is not None:
                batch = plan.payloads.of_rows(batch, rows)
            run = SchedulePlan(step=batch, head=plan.head, phase=Phase.FORWARD_ONLY)
            result = run_schedule(chunks, run, context)
            sums["loss"] += result.loss_sum
            for name in plan.means:
                sums[name] += result.metrics.get(name, 0.0) * result.divisor
            num_target_tokens += result.num_target_tokens
            divisor += result.divisor
    means = {name: total / divisor for name, total in sums.items() if divisor}
    return Evaluation(
        loss=means.pop("loss", None),
        num_target_tokens=num_target_tokens,
        num_rows=len(numbers),
        metrics=means,
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
