"""Router replay on ranks: a tiny model with MoE layers, one step of it, and what it gave.

No torch at import, so the test process may import it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megapack.layout.granularity import ParallelSizes
from megapack.records.packed_row import PackedRow
from megapack.records.routed_experts import RoutedExperts, RouteShape
from tests.support.routes import random_routes
from tests.support.rows import StepOutcome, make_row

ROWS = [
    make_row([5, 17, 3, 23], seed=0),
    make_row([1, 2, 15], seed=1),
    make_row([40, 9, 7], seed=2, supervised=0.2),
    make_row([13, 31], seed=3),
]
REAL = sum(row.num_real_tokens for row in ROWS)
SHAPE = RouteShape(num_layers=3, top_k=2, num_experts=4)
DRAWN = random_routes(ROWS, SHAPE, seed=5)
LAYOUTS = {
    "tp2-sp-cp2": ParallelSizes(tp=2, cp=2, sequence_parallel=True),
    "pp2-ep2-dp2": ParallelSizes(pp=2, dp=2, ep=2),
}

ONE = ParallelSizes()


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run: what the routers do, with which routes, in which model."""

    mode: str
    sizes: ParallelSizes = ONE
    routes: Sequence[RoutedExperts] = ()
    missing: str = "refuse"
    recompute: str = "none"
    mtp: int = 0
    aux_loss: float = 0.02
    rows_per_microbatch: int = 1
    token_budget: int | None = None
    verified: bool = False
    rows: Sequence[PackedRow] = tuple(ROWS)


def job_of(setting: Setting) -> Any:
    """Four layers, the first of them dense."""
    from megapack.jobs.model import Recompute
    from tests.support.tiny_training import JOB, MOE

    return JOB.model_copy(
        update={
            "num_layers": 4,
            "moe": MOE.model_copy(
                update={"num_dense_layers": 1, "aux_loss_coefficient": setting.aux_loss}
            ),
            "recompute": Recompute(setting.recompute),
            "mtp_num_layers": setting.mtp,
        }
    )


def plan_of(setting: Setting, context: Any, *, sink: Any = None, head: Any = None) -> Any:
    from dataclasses import replace

    from megapack.batch.alignment import VerifiedRoutes
    from megapack.batch.iterate import dense_step, step_batch
    from megapack.batch.routing import AttachRoutes, MissingRoutes, RouteTable
    from megapack.engine.schedule import SchedulePlan
    from megapack.model.replay import ReplayMode
    from megapack.outputs.loss import TokenLossHead

    layout = setting.rows[0].layout
    mine = list(setting.rows[context.dp_rank :: setting.sizes.dp])
    if setting.token_budget:
        step = dense_step(
            mine,
            context=context,
            token_budget=setting.token_budget,
            granularity=layout.granularity,
        )
    else:
        step = step_batch(
            mine,
            context=context,
            row_length=layout.row_length,
            granularity=layout.granularity,
            rows_per_microbatch=setting.rows_per_microbatch,
        )
    if setting.mode.startswith("replay"):
        table = RouteTable.of(setting.routes, shape=SHAPE, missing=MissingRoutes(setting.missing))
        stage = AttachRoutes(table=table)
        if setting.verified:
            stage = VerifiedRoutes(table=table, context=context)
        step = replace(step, stages=(stage,))
    return SchedulePlan(
        step=step, head=head or TokenLossHead(), sink=sink, replay=ReplayMode(setting.mode)
    )


def train(*, setting: Setting) -> tuple[StepOutcome, list[RoutedExperts]]:
    """Run on ranks: one step; its numbers, and the records that this rank's sink was given."""
    import torch

    from megapack.engine.schedule import run_schedule
    from tests.support.tiny_training import start, whole_parameters

    context, chunks, wrapped = start(setting.sizes, dtype=torch.float64, job=job_of(setting))
    records: list[Any] = []
    plan = plan_of(setting, context, sink=records.extend)
    result = run_schedule(wrapped, plan, context)
    outcome = StepOutcome(
        loss_sum=result.loss_sum,
        num_target_tokens=result.num_target_tokens,
        normalizer_tokens=plan.step.normalizer.num_target_tokens,
        metrics=dict(result.metrics),
        gradients=whole_parameters(chunks[0], context),
    )
    context.destroy()
    return outcome, records
