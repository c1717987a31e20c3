"""Routes of every kind of microbatch are aligned, and what would not be replayed is refused."""

from typing import Any

from megapack.layout.granularity import ParallelSizes
from megapack.records.routed_experts import RoutedExperts
from tests.support.ranks import RankServer
from tests.support.replaying import DRAWN, ROWS, SHAPE, Setting, job_of, plan_of


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
