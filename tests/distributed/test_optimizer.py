"""Three optimizer steps: sharded over dp equals one process; rates follow the schedule."""

from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankServer
from tests.support.rows import GRANULARITY, make_row, worst_error

STEPS = [[make_row([5 + i, 17, 3, 23 - s], seed=10 * s + i) for i in range(4)] for s in range(3)]


def train(*, sizes: ParallelSizes, distributed: bool, dtype: str = "float32") -> Any:
    import torch

    from megapack.batch.iterate import step_batch
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.jobs.train import OptimizerJob
    from megapack.model.optimizer import build_optimizer, build_scheduler
    from megapack.outputs.loss import TokenLossHead
    from tests.support.tiny_training import start, whole_parameters

    context, chunks, wrapped = start(
        sizes, dtype=getattr(torch, dtype), distributed_optimizer=distributed
    )
    job = OptimizerJob(lr=1e-2, min_lr=1e-3, warmup_steps=1, distributed=distributed)
    optimizer = build_optimizer(wrapped, job, context=context)
    scheduler = build_scheduler(optimizer, job, total_steps=3)
    losses, norms, rates = [], [], []
    for rows in STEPS:
        scheduler.step(1)
        for chunk in wrapped:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        mine = rows[context.dp_rank :: sizes.dp]
        step = step_batch(mine, context=context, row_length=96, granularity=GRANULARITY)
        plan = SchedulePlan(step=step, head=TokenLossHead())
        losses.append(run_schedule(wrapped, plan, context).mean_loss)
        ok, norm, _ = optimizer.step()
        assert ok
        norms.append(float(norm))
        rates.append(optimizer.param_groups[0]["lr"])
    return losses, norms, rates, whole_parameters(chunks[0], context, attribute="data")


@pytest.fixture(scope="module")
def expected(ranks: RankServer) -> Any:
    return ranks.run(train, sizes=ParallelSizes(), distributed=False)[0]


@pytest.mark.parametrize(
    ("sizes", "distributed"),
    [
        (ParallelSizes(dp=2), True),
        (ParallelSizes(dp=2), False),
        (ParallelSizes(tp=2, cp=2, sequence_parallel=True), True),
        (ParallelSizes(pp=2), True),
    ],
    ids=["dp2-distributed", "dp2", "tp2-sp-cp2-distributed", "pp2-distributed"],
)
def test_three_steps_equal_one_process(
    ranks: RankServer, expected: Any, *, sizes: ParallelSizes, distributed: bool
) -> None:
    losses, norms, rates, parameters = ranks.run(
        train, world_size=sizes.world_size, sizes=sizes, distributed=distributed
    )[0]
    assert losses == pytest.approx(expected[0], rel=1e-5)
    assert norms == pytest.approx(expected[1], rel=1e-4)
    assert rates == pytest.approx(expected[2], rel=0)
    assert worst_error(parameters, expected[3]) < 2e-4


def reload_and_step() -> set[float]:
    import torch

    from megapack.jobs.train import OptimizerJob
    from megapack.model.optimizer import build_optimizer, load_optimizer_state, parts
    from tests.support.tiny_training import start

    context, _, wrapped = start(ParallelSizes(), dtype=torch.float32, distributed_optimizer=True)
    optimizer = build_optimizer(wrapped, OptimizerJob(), context=context)
    optimizer.step()
    load_optimizer_state(optimizer, optimizer.state_dict())
    optimizer.step()
    return {float(s["step"]) for part in parts(optimizer) for s in part.optimizer.state.values()}


def schedule_error(*, warmup_steps: int, min_lr: float) -> str:
    from megapack.errors import ConfigError
    from megapack.jobs.train import OptimizerJob
    from megapack.model.optimizer import build_scheduler

    job = OptimizerJob(warmup_steps=warmup_steps, min_lr=min_lr)
    try:
        build_scheduler(None, job, total_steps=5)
    except ConfigError as error:
        return str(error)
    return ""


def test_loaded_state_advances_each_parameter_by_one(ranks: RankServer) -> None:
    assert ranks.run(reload_and_step)[0] == {2.0}


def test_schedule_that_cannot_be_is_refused(ranks: RankServer) -> None:
    long = ranks.run(schedule_error, warmup_steps=5, min_lr=0.0)[0]
    assert long.startswith("OptimizerJob.warmup_steps = 5, expected fewer than the run's 5 steps")
    high = ranks.run(schedule_error, warmup_steps=0, min_lr=1.0)[0]
    assert high.startswith("OptimizerJob.min_lr = 1.0, expected at most lr = 0.0003")


def test_bf16_with_distributed_optimizer_follows_one_process(ranks: RankServer) -> None:
    one = ranks.run(train, sizes=ParallelSizes(), distributed=True, dtype="bfloat16")[0]
    two = ranks.run(
        train, world_size=2, sizes=ParallelSizes(dp=2), distributed=True, dtype="bfloat16"
    )[0]
    assert two[0] == pytest.approx(one[0], rel=1e-2)
    assert two[1] == pytest.approx(one[1], rel=2e-2)
    assert np.isfinite(two[0]).all()


def test_rates_warm_up_then_follow_the_cosine(expected: Any) -> None:
    assert expected[2] == pytest.approx([1e-2, (1e-2 + 1e-3) / 2, 1e-3])
