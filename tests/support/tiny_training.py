"""A tiny model, one training step, and gathered gradients, for tests on ranks.

Imports torch and megatron-core: only functions that run on ranks may import this module.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from megapack.batch.iterate import step_batch
from megapack.engine.schedule import Phase, SchedulePlan, run_schedule
from megapack.jobs.model import ModelJob
from megapack.jobs.train import OptimizerJob
from megapack.layout.granularity import ParallelSizes
from megapack.model.build import build_model, wrap_ddp
from megapack.model.initialize import global_parameters
from megapack.model.optimizer import build_optimizer, build_scheduler
from megapack.outputs.head import OutputHead, Record
from megapack.outputs.loss import TokenLossHead
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from tests.support.rows import VOCAB, StepOutcome

JOB = ModelJob(
    num_layers=2,
    hidden_size=32,
    ffn_hidden_size=48,
    num_attention_heads=4,
    num_query_groups=2,
    init_std=0.2,
    vocab_multiple=16,
)

# Large enough that an update is smooth in the gradient: Adam alone turns roundings of gradients
# near zero into whole steps.
UPDATE_EPSILON = 1e-3
UPDATES = 3


def start(
    sizes: ParallelSizes,
    *,
    dtype: torch.dtype | None = None,
    job: ModelJob = JOB,
    distributed_optimizer: bool = False,
) -> tuple[ParallelContext, list[Any], list[Any]]:
    """Context, bare chunks and DDP chunks of a layout."""
    context = ParallelContext.initialize(sizes, seed=7)
    chunks = build_model(job, context=context, vocab_size=VOCAB, seed=11, params_dtype=dtype)
    wrapped = wrap_ddp(chunks, context=context, distributed_optimizer=distributed_optimizer)
    for chunk in wrapped:
        chunk.zero_grad_buffer()
    return context, chunks, wrapped


def whole_parameters(
    chunk: Any, context: ParallelContext, *, attribute: str = "main_grad", tied: bool = False
) -> dict[str, np.ndarray]:
    """Collective over the world: an attribute of all parameters, whole, float64, on rank 0.

    Padded vocabulary rows are cut, so that layouts with other paddings compare.
    """
    mine = {}
    for name, parameter in global_parameters(chunk, tied=tied):
        value = getattr(parameter, attribute).detach().to(torch.float64)
        if getattr(parameter, "tensor_model_parallel", False) and context.sizes.tp > 1:
            value = join_tp(name, value, parameter.partition_dim, context)
        if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            value = value[:VOCAB]
        mine[name] = value.numpy()
    stages: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(stages, mine)
    return {name: value for stage in stages for name, value in stage.items()}


def join_tp(name: str, value: torch.Tensor, dim: int, context: ParallelContext) -> torch.Tensor:
    """Put the tensor parallel parts together; SwiGLU halves by themselves."""
    parts = [torch.empty_like(value) for _ in range(context.sizes.tp)]
    dist.all_gather(parts, value.contiguous(), group=context.tp_group)
    if "linear_fc1" in name:
        halves = [part.chunk(2, dim) for part in parts]
        return torch.cat([half[0] for half in halves] + [half[1] for half in halves], dim)
    return torch.cat(parts, dim)


def train_step(
    *,
    sizes: ParallelSizes,
    rows: Sequence[PackedRow],
    dtype: str = "float64",
    job: ModelJob = JOB,
    distributed_optimizer: bool = False,
) -> StepOutcome:
    """Run on ranks: forward and backward over the global rows, dealt out over dp."""
    context, chunks, wrapped = start(
        sizes, dtype=getattr(torch, dtype), job=job, distributed_optimizer=distributed_optimizer
    )
    mine = list(rows[context.dp_rank :: sizes.dp])
    step = step_batch(
        mine,
        context=context,
        row_length=rows[0].layout.row_length,
        granularity=rows[0].layout.granularity,
    )
    result = run_schedule(wrapped, SchedulePlan(step=step, head=TokenLossHead()), context)
    if distributed_optimizer:
        gather_sharded_gradients(wrapped)
    outcome = StepOutcome(
        loss_sum=result.loss_sum,
        num_target_tokens=result.num_target_tokens,
        normalizer_tokens=step.normalizer.num_target_tokens,
        metrics=dict(result.metrics),
        gradients=whole_parameters(chunks[0], context, tied=job.tie_embeddings),
    )
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
        step = step_batch(
            list(rows[context.dp_rank :: sizes.dp]),
            context=context,
            row_length=rows[0].layout.row_length,
            granularity=rows[0].layout.granularity,
        )
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


def collect_records(
    *,
    sizes: ParallelSizes,
    rows: Sequence[PackedRow],
    head: OutputHead,
    dtype: str = "float32",
    job: ModelJob = JOB,
) -> list[Record]:
    """Run on ranks: forward only; the records that this rank's sink was given, in order."""
    context, chunks, _ = start(sizes, dtype=getattr(torch, dtype), job=job)
    step = step_batch(
        list(rows[context.dp_rank :: sizes.dp]),
        context=context,
        row_length=rows[0].layout.row_length,
        granularity=rows[0].layout.granularity,
    )
    records: list[Record] = []
    plan = SchedulePlan(step=step, head=head, phase=Phase.FORWARD_ONLY, sink=records.extend)
    run_schedule(chunks, plan, context)
    context.destroy()
    return records
