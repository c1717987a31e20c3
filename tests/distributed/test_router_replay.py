"""Routes recorded or given at one layout are in force at every other, and nowhere else."""

from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import ParallelSizes
from megapack.records.routed_experts import NOT_CAPTURED, RoutedExperts
from tests.support.ranks import RankServer
from tests.support.replaying import (
    DRAWN,
    LAYOUTS,
    REAL,
    ROWS,
    SHAPE,
    Setting,
    job_of,
    plan_of,
    train,
)
from tests.support.rows import StepOutcome, worst_error


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
    assert not any(name.startswith("routes_") for name in outcome.metrics)
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


def test_mtp_routers_are_left_alone(ranks: RankServer, drawn: StepOutcome) -> None:
    """NVIDIA-NeMo/RL#4057: the decoder replays as without them, and they as in one process."""
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
