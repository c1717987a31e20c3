"""A tiny model, one training step, and gathered gradients, for tests on ranks.

Imports torch and megatron-core: only functions that run on ranks may import this module.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from megapack.batch.iterate import StepBatch, step_batch
from megapack.engine.schedule import Phase, SchedulePlan, ScheduleResult, run_schedule
from megapack.jobs.model import ModelJob
from megapack.jobs.moe import MoeJob
from megapack.layout.granularity import ParallelSizes
from megapack.model.build import build_model, wrap_ddp
from megapack.model.initialize import global_parameters, is_expert, tensor_place
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

MOE = MoeJob(
    num_experts=4,
    experts_per_token=2,
    expert_ffn_hidden_size=24,
    aux_loss_coefficient=0.02,
    z_loss_coefficient=0.003,
)
MOE_JOB = JOB.model_copy(update={"moe": MOE})


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
        if getattr(parameter, "tensor_model_parallel", False):
            value = join_tp(name, value, parameter.partition_dim, context)
        if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            value = value[:VOCAB]
        mine[name] = value.numpy()
    stages: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(stages, mine)
    return {name: value for stage in stages for name, value in stage.items()}


def join_tp(name: str, value: torch.Tensor, dim: int, context: ParallelContext) -> torch.Tensor:
    """Put the tensor parallel parts together; SwiGLU halves by themselves."""
    size, _ = tensor_place(name, context)
    if size == 1:
        return value
    group = context.collection.expt_tp if is_expert(name) else context.tp_group
    parts = [torch.empty_like(value) for _ in range(size)]
    dist.all_gather(parts, value.contiguous(), group=group)
    if "linear_fc1" in name:
        halves = [part.chunk(2, dim) for part in parts]
        return torch.cat([half[0] for half in halves] + [half[1] for half in halves], dim)
    return torch.cat(parts, dim)


StepMaker = Callable[[list[PackedRow], ParallelContext], StepBatch]


def packed_step(
    rows: list[PackedRow], context: ParallelContext, *, rows_per_microbatch: int = 1
) -> StepBatch:
    """The step of this dp rank's rows, taken as they are."""
    mine = rows[context.dp_rank :: context.sizes.dp]
    return step_batch(
        mine,
        context=context,
        row_length=rows[0].layout.row_length,
        granularity=rows[0].layout.granularity,
        rows_per_microbatch=rows_per_microbatch,
    )


def train_step(
    *,
    sizes: ParallelSizes,
    rows: Sequence[PackedRow],
    dtype: str = "float64",
    job: ModelJob = JOB,
    make: StepMaker = packed_step,
    model_class: type | None = None,
) -> StepOutcome:
    """Run on ranks: forward and backward over the global rows, dealt out over dp.

    `model_class` is a GPTModel with another forward.
    """
    context, chunks, wrapped = start(sizes, dtype=getattr(torch, dtype), job=job)
    if model_class is not None:
        for chunk in chunks:
            chunk.__class__ = model_class
    step = make(list(rows), context)
    result = run_schedule(wrapped, SchedulePlan(step=step, head=TokenLossHead()), context)
    gradients = whole_parameters(chunks[0], context, tied=job.tie_embeddings)
    outcome = outcome_of(result, step, gradients)
    context.destroy()
    return outcome


def outcome_of(
    result: ScheduleResult, step: StepBatch, gradients: dict[str, np.ndarray]
) -> StepOutcome:
    """What a step gave, without anything that needs torch to be read."""
    return StepOutcome(
        loss_sum=result.loss_sum,
        num_target_tokens=result.num_target_tokens,
        normalizer_tokens=step.normalizer.num_target_tokens,
        metrics=dict(result.metrics),
        gradients=gradients,
    )


def collect_records(
    *,
    sizes: ParallelSizes,
    rows: Sequence[PackedRow],
    head: OutputHead,
    dtype: str = "float32",
    job: ModelJob = JOB,
    make: StepMaker = packed_step,
) -> list[Record]:
    """Run on ranks: forward only; the records that this rank's sink was given, in order."""
    context, chunks, _ = start(sizes, dtype=getattr(torch, dtype), job=job)
    step = make(list(rows), context)
    records: list[Record] = []
    plan = SchedulePlan(step=step, head=head, phase=Phase.FORWARD_ONLY, sink=records.extend)
    run_schedule(chunks, plan, context)
    context.destroy()
    return records
