"""R2, R3: routes recorded or given at one layout are in force at every other, and nowhere else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import ParallelSizes
from megapack.records.packed_row import PackedRow
from megapack.records.routed_experts import NOT_CAPTURED, RoutedExperts, RouteShape
from tests.support.ranks import RankServer
from tests.support.routes import random_routes
from tests.support.rows import StepOutcome, make_row, worst_error

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


def run(ranks: RankServer, **setting: Any) -> tuple[StepOutcome, dict[str, RoutedExperts]]:
    """The outcome of a run and its recorded routes; no document may come twice."""
    chosen = Setting(**setting)
    results = ranks.run(train, world_size=chosen.sizes.world_size, setting=chosen)
    records = [record for _, recorded in results for record in recorded]
    by_id = {record.document_id: record for record in records}
    assert len(by_id) == len(records)
    return results[0][0], by_id


def assert_same_step(got: StepOutcome, expected: StepOutcome) -> None:
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
    assert worst_error(got.gradients, expected.gradients) < 1e-12


@pytest.fixture(scope="module")
def live(ranks: RankServer) -> tuple[StepOutcome, dict[str, RoutedExperts]]:
    """One process whose routers choose; recording changes nothing."""
    outcome, records = run(ranks, mode="record")
    assert_same_step(run(ranks, mode="off")[0], outcome)
    assert outcome.metrics.keys() == {"loss"}
    return outcome, records


@pytest.fixture(scope="module")
def drawn(ranks: RankServer) -> StepOutcome:
    """One process with routes that no router would choose."""
    return run(ranks, mode="replay", routes=DRAWN)[0]


def with_upstream_replay(*, routes: list[RoutedExperts]) -> StepOutcome:
    """Run on ranks: the same step with megatron-core's own RouterReplay, one row at a time."""
    import torch
    from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction

    from megapack.engine.schedule import run_schedule
    from megapack.outputs.loss import TokenLossHead
    from tests.support.tiny_training import start, whole_parameters

    by_id = {one.document_id: one.experts for one in routes}
    setting = Setting(mode="off")
    context, chunks, wrapped = start(setting.sizes, dtype=torch.float64, job=job_of(setting))
    routers = [layer.mlp.router for layer in chunks[0].decoder.layers[1:]]
    for router in routers:
        router.router_replay = RouterReplay()
    waiting = iter(ROWS)

    def set_next(*_: Any) -> None:
        row = next(waiting)
        placed = np.tile(np.arange(SHAPE.top_k), (96, SHAPE.num_layers, 1))
        for i, document_id in enumerate(row.document_ids):
            start_, length = int(row.layout.slot_starts[i]), int(row.layout.lengths[i])
            placed[start_ : start_ + length] = by_id[document_id]
        RouterReplay.set_replay_data([torch.from_numpy(placed[:, i]) for i in range(3)])
        RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)

    chunks[0].register_forward_pre_hook(set_next)
    result = run_schedule(wrapped, plan_of(setting, context, head=TokenLossHead()), context)
    outcome = StepOutcome(
        loss_sum=result.loss_sum,
        num_target_tokens=result.num_target_tokens,
        normalizer_tokens=0,
        metrics=dict(result.metrics),
        gradients=whole_parameters(chunks[0], context),
    )
    RouterReplay.clear_global_router_replay_instances()
    context.destroy()
    return outcome


def test_drawn_routes_give_what_megatron_cores_own_replay_gives(
    ranks: RankServer, drawn: StepOutcome, live: Any
) -> None:
    assert_same_step(drawn, ranks.run(with_upstream_replay, routes=DRAWN)[0])
    assert worst_error(drawn.gradients, live[0].gradients) > 0.1
    assert drawn.metrics["routes_replayed"] == REAL * SHAPE.num_layers
    assert drawn.metrics["routes_missing"] == 0
    assert drawn.metrics["routes_changed"] > REAL


@pytest.mark.parametrize(
    ("layout", "recompute"),
    [("tp2-sp-cp2", "full"), ("pp2-ep2-dp2", "selective")],
)
def test_drawn_routes_at_any_layout_equal_one_process(
    ranks: RankServer, drawn: StepOutcome, layout: str, recompute: str
) -> None:
    got, _ = run(
        ranks,
        mode="replay_and_backward",
        sizes=LAYOUTS[layout],
        routes=DRAWN,
        recompute=recompute,
        verified=True,
    )
    assert_same_step(got, drawn)
    assert got.metrics == pytest.approx(drawn.metrics, rel=1e-12)


def test_backward_replays_the_right_microbatch_when_stages_interleave(
    ranks: RankServer, drawn: StepOutcome
) -> None:
    """Four microbatches on two stages: forwards run ahead of the backwards that recompute them."""
    got, _ = run(
        ranks,
        mode="replay_and_backward",
        sizes=ParallelSizes(pp=2),
        routes=DRAWN,
        recompute="full",
    )
    assert_same_step(got, drawn)


def test_joined_rows_and_dense_batches_replay_what_packed_rows_do(
    ranks: RankServer, live: tuple[StepOutcome, dict[str, RoutedExperts]]
) -> None:
    """Routers meet a dense batch position first, and each tensor parallel rank a part of it."""
    given = {"mode": "replay_and_backward", "routes": DRAWN, "aux_loss": 0.0}
    expected, _ = run(ranks, **given)
    sizes = ParallelSizes(tp=2, sequence_parallel=True)
    shapes: list[dict[str, Any]] = [
        {"rows_per_microbatch": 2, "sizes": LAYOUTS["tp2-sp-cp2"]},
        {"token_budget": 160, "sizes": sizes},
    ]
    for shape in shapes:
        got, _ = run(ranks, **given, **shape, verified=True)
        assert_same_step(got, expected)
        assert got.metrics["routes_changed"] == expected.metrics["routes_changed"]
    recorded = live[1]
    dense = run(ranks, mode="record", aux_loss=0.0, **shapes[1])[1]
    assert recorded.keys() == dense.keys()
    for document_id, one in dense.items():
        assert np.array_equal(one.experts, recorded[document_id].experts)


def verify_kinds() -> dict[str, int]:
    """Run on ranks: real positions that the verifier has seen, by kind of microbatch."""
    from megapack.batch.alignment import TOKEN_IDENTITY, VerifiedRoutes
    from megapack.batch.documents import documents_of
    from megapack.batch.recipe import BatchKind, BatchRecipe, build_microbatch, lay_documents
    from megapack.batch.routing import MissingRoutes, RouteTable
    from megapack.parallel.context import ParallelContext

    table = RouteTable.of(DRAWN, shape=SHAPE, missing=MissingRoutes.REFUSE)
    seen = {}
    for kind in BatchKind:
        recipe = BatchRecipe(kind=kind, granularity=ROWS[0].layout.granularity)
        row = lay_documents(documents_of(ROWS[:1]), recipe)
        cp = 1 if kind is BatchKind.DENSE else 2
        seen[kind.value] = 0
        for cp_rank in range(cp):
            context = ParallelContext.fake(ParallelSizes(cp=cp), cp_rank=cp_rank)
            stage = VerifiedRoutes(table=table, context=context)
            verified = stage(build_microbatch(row, kind, context))
            seen[kind.value] += int(verified.fields[TOKEN_IDENTITY][..., 2].sum())
    return seen


def test_routes_of_every_kind_of_microbatch_are_aligned(ranks: RankServer) -> None:
    seen = ranks.run(verify_kinds)[0]
    assert seen == dict.fromkeys(
        ["packed", "dense", "self_packed", "full_row"], ROWS[0].num_real_tokens
    )


def test_mtp_routers_are_left_alone(ranks: RankServer, drawn: StepOutcome) -> None:
    """RL#4057. The decoder replays as without MTP layers, and these as in one process."""
    given = {"mode": "replay_and_backward", "routes": DRAWN, "mtp": 1}
    one, _ = run(ranks, **given)
    assert one.loss_sum == pytest.approx(drawn.loss_sum, rel=1e-12)
    assert one.metrics["routes_replayed"] == REAL * SHAPE.num_layers
    assert one.gradients.keys() > drawn.gradients.keys()
    got, _ = run(ranks, **given, sizes=LAYOUTS["tp2-sp-cp2"], recompute="full")
    assert_same_step(got, one)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_routes_recorded_at_any_layout_are_those_of_one_process_and_replay_as_live(
    ranks: RankServer, live: tuple[StepOutcome, dict[str, RoutedExperts]], layout: str
) -> None:
    expected, routes = live
    outcome, recorded = run(ranks, mode="record", sizes=LAYOUTS[layout], recompute="full")
    assert_same_step(outcome, expected)
    assert recorded.keys() == routes.keys() == {i for row in ROWS for i in row.document_ids}
    for document_id, one in recorded.items():
        one.check(SHAPE)
        assert np.array_equal(one.experts, routes[document_id].experts)
    (other,) = [sizes for name, sizes in LAYOUTS.items() if name != layout]
    got, _ = run(ranks, mode="replay_and_backward", sizes=other, routes=tuple(recorded.values()))
    assert_same_step(got, expected)
    assert got.metrics["routes_replayed"] == REAL * SHAPE.num_layers
    assert got.metrics["routes_changed"] == got.metrics["routes_missing"] == 0


def test_tokens_without_a_route_are_routed_live_and_counted(
    ranks: RankServer, live: tuple[StepOutcome, dict[str, RoutedExperts]]
) -> None:
    """Holes in live routes: had anything else been put there, the step would differ."""
    expected, routes = live
    holed, holes = [], 0
    for one in list(routes.values())[:-1]:
        experts = np.array(one.experts)
        experts[1::3, 1] = NOT_CAPTURED
        holes += len(experts[1::3])
        holed.append(RoutedExperts(document_id=one.document_id, experts=experts))
    holes += list(routes.values())[-1].num_positions * SHAPE.num_layers
    got, _ = run(
        ranks,
        mode="replay_and_backward",
        sizes=LAYOUTS["tp2-sp-cp2"],
        routes=tuple(holed),
        missing="live",
        recompute="full",
    )
    assert_same_step(got, expected)
    assert got.metrics["routes_missing"] == holes
    assert got.metrics["routes_replayed"] == REAL * SHAPE.num_layers - holes


def session_ends(*, routes: list[RoutedExperts]) -> dict[str, Any]:
    """Run on ranks: a step whose head fails, then steps as if it had not been."""
    import torch

    from megapack.engine.schedule import run_schedule
    from tests.support.tiny_training import start

    setting = Setting(mode="replay_and_backward", routes=routes, recompute="full")
    context, chunks, wrapped = start(setting.sizes, dtype=torch.float64, job=job_of(setting))
    routers = [layer.mlp.router for layer in chunks[0].decoder.layers[1:]]
    during: list[bool] = []

    class FailingHead:
        def __init__(self, needs: Any) -> None:
            self.needs = needs

        def __call__(self, *_: Any) -> Any:
            during.append(all(router.router_replay is not None for router in routers))
            raise RuntimeError("head failed")

    def loss(mode: str) -> float:
        plan = plan_of(
            Setting(mode=mode, routes=routes, recompute="full"), context, sink=lambda _: None
        )
        return run_schedule(wrapped, plan, context).loss_sum

    before = loss("off")
    needs = plan_of(Setting(mode="off"), context).head.needs
    plan = plan_of(setting, context, head=FailingHead(needs))
    try:
        run_schedule(wrapped, plan, context)
    except RuntimeError as error:
        raised = str(error)
    left = [router.router_replay for router in routers]
    return {
        "during": during,
        "raised": raised,
        "left": left,
        "off": (before, loss("off")),
        "replay": loss("replay_and_backward"),
        "off again": loss("off"),
    }


def test_nothing_is_left_after_an_exception_or_a_step(
    ranks: RankServer, live: Any, drawn: StepOutcome
) -> None:
    found = ranks.run(session_ends, routes=DRAWN)[0]
    assert found["during"] == [True]
    assert found["raised"] == "head failed"
    assert found["left"] == [None, None, None]
    assert found["off"][0] == found["off"][1] == found["off again"]
    assert found["off"][0] == pytest.approx(live[0].loss_sum, rel=1e-12)
    assert found["replay"] == pytest.approx(drawn.loss_sum, rel=1e-12)


def refusals(*, routes: list[RoutedExperts]) -> dict[str, str]:
    """Run on ranks: what is said of runs that would not replay what they are given."""
    from dataclasses import replace

    from megapack.engine.schedule import Phase, run_schedule
    from megapack.errors import ConfigError, ContractError, DataError
    from tests.support.tiny_training import JOB, start

    said: dict[str, str] = {}

    def attempt(name: str, chunks: Any, plan: Any) -> None:
        try:
            run_schedule(chunks, plan, context)
        except (ConfigError, ContractError, DataError) as error:
            said[name] = str(error)

    replaying = Setting(mode="replay_and_backward", routes=routes)
    recomputing = replace(replaying, mode="replay", recompute="full")
    context, _, recomputed = start(replaying.sizes, job=job_of(recomputing))
    attempt("recompute", recomputed, plan_of(recomputing, context))
    context.destroy()
    context, _, dense = start(replaying.sizes, job=JOB)
    attempt("dense", dense, plan_of(replaying, context))
    context.destroy()
    context, chunks, moe = start(replaying.sizes, job=job_of(replaying))
    plan = plan_of(replaying, context)
    attempt("no routes", moe, replace(plan, step=replace(plan.step, stages=())))
    attempt("no backward", chunks, replace(plan, phase=Phase.FORWARD_ONLY))
    attempt("no sink", moe, plan_of(Setting(mode="record"), context))
    attempt("missing", moe, plan_of(replace(replaying, routes=routes[1:]), context))
    moe[0].module.config.moe_router_fusion = True
    attempt("fused", moe, plan)
    context.destroy()
    return said


def test_run_that_would_not_replay_is_refused_by_name(ranks: RankServer) -> None:
    said = ranks.run(refusals, routes=DRAWN)[0]
    for name, words in {
        "recompute": "its routers would choose anew in the backward. Use replay_and_backward",
        "dense": "a model without MoE layers has no routes",
        "no routes": "expected the microbatch to carry routes (3, 2) a position",
        "no backward": "expected a run with a backward, found phase = forward_only. Use replay",
        "no sink": "replay = record: expected a sink for the routes, found none",
        "missing": "found none for 5, the first at position 0",
        "fused": "does not work with moe_router_fusion",
    }.items():
        assert words in said[name], name
