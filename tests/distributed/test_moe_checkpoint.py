"""Experts, their optimizer state and the router's bias go on at another layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megapack.jobs.moe import RouterScore
from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankServer
from tests.support.rows import GRANULARITY, make_row, worst_error

STEPS = [[make_row([5 + i, 17, 3, 23 - s], seed=10 * s + i) for i in range(4)] for s in range(2)]
RICH = {
    "score_function": RouterScore.SIGMOID,
    "expert_bias_update_rate": 0.05,
    "shared_expert_ffn_hidden_size": 16,
    "num_dense_layers": 1,
}
ONE = ParallelSizes()
EP2 = ParallelSizes(dp=2, ep=2)
TP2 = ParallelSizes(tp=2, sequence_parallel=True, ep=2)
# The first stage has no expert.
PP2 = ParallelSizes(pp=2, dp=2, ep=2)
# More ranks than key/value heads.
TP4 = ParallelSizes(tp=4, ep=2, sequence_parallel=True)


def job(dtype: str) -> Any:
    from tests.support.tiny_training import MOE, MOE_JOB

    moe = MOE.model_copy(update=RICH)
    mtp = 1 if dtype == "float32" else 0
    return MOE_JOB.model_copy(update={"moe": moe, "mtp_num_layers": mtp, "tie_embeddings": True})


def steps(
    *,
    sizes: ParallelSizes,
    save: str | None = None,
    load: str | None = None,
    dtype: str = "float32",
) -> Any:
    """Two steps with the distributed optimizer, or the second one after loading the first."""
    import torch

    from megapack.batch.iterate import step_batch
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.engine.sharded_state import TrainState, load_state, save_state
    from megapack.jobs.train import OptimizerJob
    from megapack.model.optimizer import build_optimizer, build_scheduler
    from megapack.outputs.loss import TokenLossHead
    from tests.support.tiny_training import start, whole_parameters

    shape = job(dtype)
    context, chunks, wrapped = start(
        sizes, dtype=getattr(torch, dtype), job=shape, distributed_optimizer=True
    )
    settings = OptimizerJob(lr=1e-2, min_lr=1e-3)
    optimizer = build_optimizer(wrapped, settings, context=context)
    scheduler = build_scheduler(optimizer, settings, total_steps=3)
    state = TrainState(chunks=wrapped, optimizer=optimizer, scheduler=scheduler, context=context)
    if load:
        load_state(state, Path(load), same_layout=False)
    losses, norms = [], []
    for rows in STEPS[1 if load else 0 :]:
        scheduler.step(1)
        for chunk in wrapped:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        mine = rows[context.dp_rank :: sizes.dp]
        batch = step_batch(mine, context=context, row_length=96, granularity=GRANULARITY)
        plan = SchedulePlan(step=batch, head=TokenLossHead())
        losses.append(run_schedule(wrapped, plan, context).mean_loss)
        norms.append(float(optimizer.step()[1]))
        if save and len(losses) == 1:
            Path(save).mkdir(exist_ok=True)
            save_state(state, Path(save))
    biases = {
        name: value.tolist() for name, value in chunks[0].named_buffers() if "expert_bias" in name
    }
    tied = shape.tie_embeddings
    whole = whole_parameters(chunks[0], context, attribute="data", tied=tied)
    return losses, norms, biases, whole


@pytest.mark.parametrize(
    ("before", "after"),
    [(TP2, PP2), (PP2, TP4), (TP4, ONE)],
    ids=["tp2-ep2-to-pp2-ep2", "pp2-ep2-to-tp4-ep2", "tp4-ep2-to-one"],
)
def test_second_step_after_a_change_of_layout_equals_two_steps(
    ranks: RankServer, tmp_path: Path, before: ParallelSizes, after: ParallelSizes
) -> None:
    folder = str(tmp_path / "state")
    losses, norms, biases, parameters = ranks.run(
        steps, world_size=before.world_size, sizes=before, save=folder
    )[0]
    loaded = ranks.run(steps, world_size=after.world_size, sizes=after, load=folder)[0]
    assert loaded[0] == pytest.approx(losses[1:], rel=2e-6)
    assert loaded[1] == pytest.approx(norms[1:], rel=2e-5)
    assert worst_error(loaded[3], parameters) < 2e-4
    for name in biases.keys() & loaded[2].keys():
        assert loaded[2][name] == pytest.approx(biases[name], abs=1e-9)


def test_bf16_experts_with_float32_main_parameters_follow_one_process(ranks: RankServer) -> None:
    one = ranks.run(steps, sizes=ONE, dtype="bfloat16")[0]
    two = ranks.run(steps, world_size=2, sizes=EP2, dtype="bfloat16")[0]
    assert two[0] == pytest.approx(one[0], rel=1e-2)
    assert two[1] == pytest.approx(one[1], rel=3e-2)
    assert np.isfinite(two[0]).all()
