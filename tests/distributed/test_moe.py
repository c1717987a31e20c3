"""Experts, routers and MTP layers: equal to a plain model, at every layout, whatever the padding.

A router loss is a mean over real tokens: padding, filler rows and the share of supervised tokens
do not change it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from megapack.jobs.model import Recompute
from megapack.jobs.moe import RouterScore
from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankServer
from tests.support.rows import make_row, worst_error

LENGTHS = [[5, 17, 3, 23], [1, 2, 15], [40, 9, 7], [13, 31]]
ROWS = [make_row(lengths, seed=i) for i, lengths in enumerate(LENGTHS)]
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mtp": ({"mtp_num_layers": 2}, {"shared_expert_ffn_hidden_size": 16}),
    "sigmoid": (
        {"num_layers": 2, "tie_embeddings": True, "mtp_num_layers": 1},
        {
            "num_dense_layers": 1,
            "score_function": RouterScore.SIGMOID,
            "expert_bias_update_rate": 0.05,
            "weights_scale": 2.5,
        },
    ),
}
LAYOUTS = {
    "dp2-ep2": ParallelSizes(dp=2, ep=2),
    "cp2-ep2": ParallelSizes(cp=2, ep=2),
    "tp2-sp-ep2": ParallelSizes(tp=2, ep=2, sequence_parallel=True),
    "tp2-sp-dp2-ep2-etp2": ParallelSizes(tp=2, dp=2, ep=2, etp=2, sequence_parallel=True),
    "tp2-sp-pp2-ep2": ParallelSizes(tp=2, pp=2, ep=2, sequence_parallel=True),
}
Reference = Callable[[str], Any]


def step(
    *,
    sizes: ParallelSizes,
    rows: Any = ROWS,
    variant: str = "mtp",
    model: dict[str, Any] | None = None,
    moe: dict[str, Any] | None = None,
    dtype: str = "float64",
) -> Any:
    from tests.support.tiny_training import MOE, MOE_JOB, train_step

    shape, experts = VARIANTS[variant]
    changed = MOE.model_copy(update={**experts, **(moe or {})})
    job = MOE_JOB.model_copy(update={"moe": changed, **shape, **(model or {})})
    return train_step(sizes=sizes, rows=rows, dtype=dtype, job=job)


@pytest.fixture(scope="module")
def reference(ranks: RankServer) -> Reference:
    """One-process outcome of each variant, computed once."""
    known: dict[str, Any] = {}

    def outcome(variant: str) -> Any:
        if variant not in known:
            known[variant] = ranks.run(step, sizes=ParallelSizes(), variant=variant)[0]
        return known[variant]

    return outcome


def assert_equal(got: Any, expected: Any, tolerance: float = 1e-12) -> None:
    assert got.num_target_tokens == expected.num_target_tokens
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=tolerance)
    for name, value in expected.metrics.items():
        # Sums of float32 scores: only the value's own sum depends on the order.
        loose = 1e-6 if name == "router_balance_loss" else tolerance
        assert got.metrics[name] == pytest.approx(value, rel=loose)
    assert worst_error(got.gradients, expected.gradients) < tolerance


@pytest.mark.parametrize(
    ("variant", "layout"),
    [("mtp", name) for name in LAYOUTS if name != "dp2-ep2"] + [("sigmoid", "tp2-sp-pp2-ep2")],
)
def test_step_float64_equals_one_process(
    ranks: RankServer, reference: Reference, variant: str, layout: str
) -> None:
    sizes = LAYOUTS[layout]
    got = ranks.run(step, world_size=sizes.world_size, sizes=sizes, variant=variant)[0]
    assert_equal(got, reference(variant))


def plain() -> Any:
    import torch

    from tests.support.plain_moe import plain_gradients
    from tests.support.tiny_training import MOE, MOE_JOB, start, whole_parameters

    shape, experts = VARIANTS["mtp"]
    job = MOE_JOB.model_copy(update={"moe": MOE.model_copy(update=experts), **shape})
    context, chunks, _ = start(ParallelSizes(), job=job, dtype=torch.float64)
    values = whole_parameters(chunks[0], context, attribute="data")
    context.destroy()
    return plain_gradients(values, ROWS, job)


def test_step_equals_a_plain_model_one_document_at_a_time(
    ranks: RankServer, reference: Reference
) -> None:
    gradients, means = ranks.run(plain)[0]
    got = reference("mtp")
    names = ["loss", "mtp_1_loss", "mtp_2_loss", "router_balance_loss", "router_z_loss"]
    assert list(got.metrics) == names
    assert list(got.metrics.values()) == pytest.approx(means, rel=1e-7)
    # finalize_model_grads divides by a float32 count, which costs 1e-7.
    assert worst_error(got.gradients, gradients) < 3e-7


@pytest.mark.parametrize("recompute", [Recompute.SELECTIVE, Recompute.FULL])
def test_recompute_gives_the_same_numbers(
    ranks: RankServer, reference: Reference, recompute: Recompute
) -> None:
    sizes = LAYOUTS["cp2-ep2"]
    got = ranks.run(step, world_size=2, sizes=sizes, model={"recompute": recompute})[0]
    assert_equal(got, reference("mtp"))


def test_padding_adds_nothing_to_routers(ranks: RankServer, reference: Reference) -> None:
    sizes = LAYOUTS["cp2-ep2"]
    padded = [make_row(lengths, seed=i, row_length=192) for i, lengths in enumerate(LENGTHS)]
    got = ranks.run(step, world_size=2, sizes=sizes, rows=padded)[0]
    assert_equal(got, reference("mtp"))


def test_filler_rows_add_nothing_to_routers(ranks: RankServer) -> None:
    expected = ranks.run(step, sizes=ParallelSizes(), rows=ROWS[:3])[0]
    got = ranks.run(step, world_size=2, sizes=LAYOUTS["dp2-ep2"], rows=ROWS[:3])[0]
    assert_equal(got, expected)


def test_router_losses_do_not_depend_on_the_share_of_targets(ranks: RankServer) -> None:
    off = {"aux_loss_coefficient": 0.0, "z_loss_coefficient": 0.0}
    by_share, largest = [], 0.0
    for supervised in (1.0, 0.3):
        rows = [make_row(n, seed=i, supervised=supervised) for i, n in enumerate(LENGTHS)]
        same = {"sizes": ParallelSizes(), "rows": rows, "model": {"mtp_num_layers": 0}}
        on = ranks.run(step, **same)[0].gradients
        without = ranks.run(step, **same, moe=off)[0].gradients
        names = [name for name in on if name.endswith("router.weight")]
        largest = max(largest, *(float(np.abs(on[name]).max()) for name in names))
        by_share.append(np.stack([on[name] - without[name] for name in names]))
    assert np.abs(by_share[0]).max() > 1e-3
    # Scores are float32, and the difference is taken between whole gradients.
    rounding = 4 * float(np.finfo(np.float32).eps) * largest
    assert np.abs(by_share[1] - by_share[0]).max() < rounding < 1e-3 * np.abs(by_share[0]).max()


def routing(*, sizes: ParallelSizes, position: int | None, row_length: int = 96) -> Any:
    """Chosen experts by layer, their counts and the bias after a step; float32."""
    import torch

    from megapack.batch.iterate import step_batch
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.outputs.loss import TokenLossHead
    from tests.support.rows import replace_token
    from tests.support.tiny_training import MOE, MOE_JOB, start

    moe = MOE.model_copy(update=VARIANTS["sigmoid"][1] | {"num_dense_layers": 0})
    job = MOE_JOB.model_copy(update={"moe": moe})
    row = make_row([9, 17, 3, 23], seed=5, row_length=row_length)
    row = row if position is None else replace_token(row, position)
    context, chunks, wrapped = start(sizes, job=job, dtype=torch.float32)
    chosen, counts = {}, {}

    def watch(layer: int) -> Any:
        def hook(router: Any, _: Any, output: Any) -> None:
            chosen[layer] = output[1].clone().numpy()
            counts[layer] = router.local_tokens_per_expert.tolist()

        return hook

    routers = [layer.mlp.router for layer in chunks[0].decoder.layers]
    for number, router in enumerate(routers):
        router.register_forward_hook(watch(number))
    batch = step_batch(
        [row], context=context, row_length=row_length, granularity=row.layout.granularity
    )
    run_schedule(wrapped, SchedulePlan(step=batch, head=TokenLossHead()), context)
    return chosen, counts, [router.expert_bias.tolist() for router in routers]


def test_routing_of_neighbours_stays_when_one_token_changes(ranks: RankServer) -> None:
    before, after = (
        ranks.run(routing, sizes=ParallelSizes(), position=position)[0][0]
        for position in (None, 16 + 4)
    )
    own = slice(16, 16 + 17)
    for layer in before:
        changed = (before[layer] != after[layer]).any(-1)
        assert not changed[: own.start].any()
        assert not changed[own.stop :].any()
    assert any((before[layer] != after[layer])[own].any() for layer in before)


def test_padding_mask_is_true_at_padding_for_routers(ranks: RankServer) -> None:
    short = ranks.run(routing, sizes=ParallelSizes(), position=None)[0]
    long = ranks.run(routing, sizes=ParallelSizes(), position=None, row_length=192)[0]
    real, top_k = 9 + 17 + 3 + 23, 2
    for _, counts, _ in (short, long):
        assert [sum(layer) for layer in counts.values()] == [real * top_k, real * top_k]
    assert short[1] == long[1]
    assert short[2] == long[2]
    assert any(any(layer) for layer in short[2])


def test_expert_bias_follows_the_tokens_of_all_ranks(ranks: RankServer) -> None:
    one = ranks.run(routing, sizes=ParallelSizes(), position=None)[0]
    two = ranks.run(routing, world_size=2, sizes=LAYOUTS["cp2-ep2"], position=None)
    assert two[0][2] == two[1][2] == one[2]
    for layer in one[1]:
        assert np.add(two[0][1][layer], two[1][1][layer]).tolist() == one[1][layer]
