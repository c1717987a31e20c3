"""Three optimizer updates of a tiny model, and the same by torch's AdamW: on ranks only."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from megapack.engine.schedule import SchedulePlan, run_schedule
from megapack.jobs.model import ModelJob
from megapack.jobs.train import OptimizerJob
from megapack.layout.granularity import ParallelSizes
from megapack.model.optimizer import build_optimizer, build_scheduler
from megapack.outputs.loss import TokenLossHead
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from tests.support.rows import StepOutcome
from tests.support.tiny_training import outcome_of, packed_step, start, whole_parameters

UPDATES = 3
# Large enough that an update is smooth in the gradient: Adam alone turns roundings of gradients
# near zero into whole steps.
UPDATE_EPSILON = 1e-3


def sharded_step(
    *, sizes: ParallelSizes, rows: Sequence[PackedRow], dtype: str, job: ModelJob
) -> StepOutcome:
    """Run on ranks: a step whose gradients are reduce-scattered, put together again."""
    context, chunks, wrapped = start(
        sizes, dtype=getattr(torch, dtype), job=job, distributed_optimizer=True
    )
    step = packed_step(list(rows), context)
    result = run_schedule(wrapped, SchedulePlan(step=step, head=TokenLossHead()), context)
    gather_sharded_gradients(wrapped)
    gradients = whole_parameters(chunks[0], context, tied=job.tie_embeddings)
    outcome = outcome_of(result, step, gradients)
    context.destroy()
    return outcome


def gather_sharded_gradients(wrapped: Sequence[Any]) -> None:
    """Collective over dp x cp: whole gradients from the shards of the distributed optimizer.

    Each rank's reduced shard is kept and the rest of its buffer, which holds unreduced values, is
    overwritten by the other ranks' shards.
    """
    for chunk in wrapped:
        for group in [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]:
            ranks = group.intra_distributed_optimizer_instance_group
            for bucket in group.buckets:
                shards = list(bucket.grad_data.chunk(ranks.size()))
                mine = shards[ranks.rank()].clone()
                dist.all_gather(shards, mine, group=ranks)


def three_updates(
    *, sizes: ParallelSizes, rows: Sequence[PackedRow], dtype: str, job: ModelJob
) -> StepOutcome:
    """Run on ranks: parameters after three updates; float64 is torch's AdamW on one process."""
    context, chunks, wrapped = start(
        sizes, dtype=getattr(torch, dtype), job=job, distributed_optimizer=dtype != "float64"
    )
    update = _updates(wrapped, context=context, plain=dtype == "float64")
    losses = 0.0
    counted = 0
    for number in range(1, UPDATES + 1):
        for chunk in wrapped:
            chunk.zero_grad_buffer()
        step = packed_step(list(rows), context)
        result = run_schedule(wrapped, SchedulePlan(step=step, head=TokenLossHead()), context)
        losses += result.loss_sum
        counted += result.num_target_tokens
        update(number)
    outcome = StepOutcome(
        loss_sum=losses,
        num_target_tokens=counted,
        normalizer_tokens=counted,
        metrics={},
        gradients=whole_parameters(chunks[0], context, attribute="data", tied=job.tie_embeddings),
        compared="parameters",
    )
    context.destroy()
    return outcome


def _updates(wrapped: list[Any], *, context: ParallelContext, plain: bool) -> Callable[[int], None]:
    """Make update number 1, 2, ... from the gradients in the buffers.

    `plain` is torch's AdamW with rates, clipping and weight decay written out: the reference.
    """
    job = OptimizerJob(
        lr=1e-2, min_lr=1e-3, epsilon=UPDATE_EPSILON, weight_decay=0.1, clip_grad=1.0
    )
    if plain:
        return _plain_updates(list(wrapped[0].module.parameters()), job)
    optimizer = build_optimizer(wrapped, job, context=context)
    scheduler = build_scheduler(optimizer, job, total_steps=UPDATES)

    def update(_: int) -> None:
        scheduler.step(1)
        optimizer.step()

    return update


def _plain_updates(parameters: list[Any], job: OptimizerJob) -> Callable[[int], None]:
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": job.weight_decay},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, betas=(job.beta1, job.beta2), eps=job.epsilon)

    def update(number: int) -> None:
        share = (1.0 + math.cos(math.pi * number / UPDATES)) / 2.0
        for group in adam.param_groups:
            group["lr"] = job.min_lr + (job.lr - job.min_lr) * share
        for parameter in parameters:
            parameter.grad = parameter.main_grad.clone()
        torch.nn.utils.clip_grad_norm_(parameters, job.clip_grad)
        adam.step()
        adam.zero_grad()  # or the next backward adds to it

    return update
