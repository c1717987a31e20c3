"""Which rows and documents of a step a fault comes from: looked for only when there is one.

The step's rows are run again, forward only, and every document's own loss is taken. When all of
them are finite but the gradient is not, the gradient is made again row by row. Weights and
optimizer do not change.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from megapack.batch.iterate import step_batch
from megapack.engine.evaluate import evaluating
from megapack.engine.guard import Fault
from megapack.engine.schedule import Phase, SchedulePlan, run_schedule
from megapack.layout.token_fields import unplace
from megapack.outputs.head import OutputHead, Record, TokenRecord
from megapack.outputs.logprobs import LogprobHead
from megapack.outputs.loss import TokenLossHead
from megapack.records.packed_row import PackedRow
from megapack.store.step_stream import RankStep

if TYPE_CHECKING:
    from megapack.engine.run import TrainRun

SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A document of the step, or a row of it whose gradient is not finite.

    Attributes:
        row: number of the row inside the training split.
        document_ids: the document, or all documents of the row.
        loss: loss a target token in nats; NaN or infinite as found.
        share: part of the step's loss sum; 0 where that is not finite.
    """

    row: int
    document_ids: tuple[str, ...]
    loss: float
    share: float = 0.0

    def text(self) -> str:
        """As a message names it."""
        ids = ", ".join(self.document_ids[:SHOWN])
        more = len(self.document_ids) - SHOWN
        named = f"{ids} and {more} more" if more > 0 else ids
        if len(self.document_ids) == 1:
            return f"document {named} in row {self.row} (loss {self.loss:.6g})"
        return f"row {self.row} (documents {named})"


def find_suspects(run: "TrainRun", planned: RankStep, fault: Fault) -> list[Suspect]:
    """Collective over the world: where a fault comes from, worst first, the same on all ranks.

    Args:
        run: the run; gradient buffers are overwritten.
        planned: rows of the step.
        fault: what is wrong.

    Returns:
        Documents whose loss is not finite; for a spike those with the highest loss; for a
        gradient the rows that make it. Empty when the fault does not show again.
    """
    documents = _document_losses(run, planned)
    wild = [one for one in documents if not math.isfinite(one.loss)]
    if wild:
        return wild
    if fault is Fault.GRADIENT_NOT_FINITE:
        return _rows_with_wild_gradients(run, planned)
    if fault is Fault.LOSS_SPIKE:
        return sorted(documents, key=lambda one: -one.loss)[:SHOWN]
    return []


def describe(suspects: Iterable[Suspect]) -> str:
    """Suspects in one line."""
    named = list(suspects)
    if not named:
        return "no document shows it when its row runs again"
    shown = "; ".join(one.text() for one in named[:SHOWN])
    return shown if len(named) <= SHOWN else f"{shown}; and {len(named) - SHOWN} more"


@dataclass(slots=True)
class _Kept:
    """A sink that keeps the log-probabilities of all documents, in the order of the rows."""

    records: list[TokenRecord] = field(default_factory=list)

    def __call__(self, records: Sequence[Record]) -> None:
        self.records += [one for one in records if isinstance(one, TokenRecord)]


def _document_losses(run: "TrainRun", planned: RankStep) -> list[Suspect]:
    """Every document of the step that has targets, on all ranks."""
    kept = _Kept()
    with evaluating(run.bare_chunks):
        _run_rows(run, planned.rows, LogprobHead(), phase=Phase.FORWARD_ONLY, sink=kept)
    mine = []
    if run.context.is_writer:
        records = iter(kept.records)
        for number, row in zip(planned.numbers.tolist(), planned.rows, strict=True):
            for mask in unplace(row.loss_mask(), row.layout):
                record = next(records)
                values = record.target_logprobs[torch.from_numpy(mask.copy())].double()
                if values.numel():
                    total = -float(values.sum())
                    mine.append((number, record.document_id, total, values.numel()))
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    found = [one for of_rank in everyones for one in of_rank]
    whole = math.fsum(total for _, _, total, _ in found if math.isfinite(total))
    return [
        Suspect(
            row=number,
            document_ids=(document_id,),
            loss=total / count,
            share=total / whole if whole and math.isfinite(total) else 0.0,
        )
        for number, document_id, total, count in sorted(found)
    ]


def _rows_with_wild_gradients(run: "TrainRun", planned: RankStep) -> list[Suspect]:
    """Rows whose gradient alone is not finite. One backward for every row of the step."""
    context = run.context
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, (context.dp_rank, planned.numbers.tolist()))
    numbers_of = dict(everyones)
    wild = []
    for dp_rank in range(context.sizes.dp):
        for place, number in enumerate(numbers_of[dp_rank]):
            rows = planned.rows[place : place + 1] if context.dp_rank == dp_rank else ()
            run.zero_gradients()
            result = _run_rows(run, rows, TokenLossHead(), phase=Phase.TRAIN)
            if result.num_target_tokens and not math.isfinite(run.gradient_norm()):
                ids = rows[0].document_ids if rows else ()
                wild.append((number, ids))
    named: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(named, [one for one in wild if one[1]])
    found = {number: ids for of_rank in named for number, ids in of_rank}
    return [
        Suspect(row=number, document_ids=ids, loss=math.nan)
        for number, ids in sorted(found.items())
    ]


def _run_rows(
    run: "TrainRun",
    rows: Sequence[PackedRow],
    head: OutputHead,
    *,
    phase: Phase,
    sink: _Kept | None = None,
) -> Any:  # noqa: ANN401 - ScheduleResult
    batch = step_batch(
        rows,
        context=run.context,
        row_length=run.source.row_length,
        granularity=run.source.granularity,
    )
    chunks = run.state.chunks if phase is Phase.TRAIN else run.bare_chunks
    plan = SchedulePlan(step=batch, head=head, phase=phase, sink=sink)
    return run_schedule(chunks, plan, run.context)
