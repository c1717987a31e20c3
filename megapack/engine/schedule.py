"""The adapter to megatron-core's forward-backward schedules.

The only place that knows their callback contract: return (loss sum, rank-local token count,
metrics) with `calculate_per_token_loss` on, so that the schedule scales nothing and
`finalize_model_grads` divides gradients once by the token count over dp x cp. The two-value form
multiplies by cp and divides by microbatches. All rows of a step have one length, so pipeline
stages exchange tensors of a known shape.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import get_forward_backward_func

from megapack.batch.iterate import StepBatch
from megapack.batch.microbatch import MicroBatch
from megapack.engine.metrics import reduce_metrics
from megapack.errors import ContractError
from megapack.model.forward import ForwardRequest, ModelOutput, forward
from megapack.model.moe import set_router_loss_scale
from megapack.model.offload import suspended_offload
from megapack.outputs.head import HeadResult, Metric, OutputHead, Record
from megapack.parallel.collectives import all_reduce, sum_counts
from megapack.parallel.context import ParallelContext

RecordSink = Callable[[Sequence[Record]], None]


class Phase(StrEnum):
    """Whether gradients are wanted."""

    TRAIN = "train"
    FORWARD_ONLY = "forward_only"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchedulePlan:
    """One step to run.

    Attributes:
        step: microbatches.
        head: what to compute on the last stage.
        phase: TRAIN accumulates gradients into the chunks' buffers and finalises them.
        sink: takes the records of each microbatch, on the writing rank, as soon as they are there.
    """

    step: StepBatch
    head: OutputHead
    phase: Phase = Phase.TRAIN
    sink: RecordSink | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResult:
    """What a step gave, equal on all ranks.

    Attributes:
        loss_sum: sum of token losses over the step.
        num_target_tokens: positions whose label counted.
        metrics: reduced as each metric says.
    """

    loss_sum: float
    num_target_tokens: int
    metrics: Mapping[str, float]

    @property
    def mean_loss(self) -> float | None:
        """Loss a target token, None for a step without any."""
        return self.loss_sum / self.num_target_tokens if self.num_target_tokens else None


def run_schedule(
    chunks: Sequence[Any], plan: SchedulePlan, context: ParallelContext
) -> ScheduleResult:
    """Collective over the world: run one step's microbatches through the model.

    In TRAIN, call `zero_grad_buffer` on the chunks before; afterwards their gradients are summed
    over dp x cp and divided by the step's target tokens.

    Args:
        chunks: from `wrap_ddp` for TRAIN, or `build_model` for FORWARD_ONLY.
        plan: what to run.
        context: this rank.

    Returns:
        Reduced numbers, on all ranks.

    Raises:
        ContractError: the step has no microbatch.
    """
    if plan.step.num_microbatches == 0:
        raise ContractError(
            "run_schedule: expected at least one microbatch, found a step without rows. Do not run "
            "an empty step."
        )
    results: list[HeadResult] = []
    step = _ForwardStep(plan=plan, context=context, results=results)
    normalizer = plan.step.normalizer
    set_router_loss_scale(
        chunks,
        num_real=normalizer.num_real_tokens,
        num_targets=normalizer.num_target_tokens,
    )
    with ExitStack() as phase:
        if plan.phase is Phase.FORWARD_ONLY:
            phase.enter_context(torch.no_grad())
            phase.enter_context(suspended_offload(chunks))
        get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=plan.step.microbatches,
            model=list(chunks),
            num_microbatches=plan.step.num_microbatches,
            seq_length=plan.step.row_length,
            micro_batch_size=1,
            forward_only=plan.phase is Phase.FORWARD_ONLY,
        )
    return _to_all_stages(_reduce(results, context) if context.is_last_stage else None, context)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ForwardStep:
    """megatron-core's forward_step_func: next microbatch, forward, and a loss callback."""

    plan: SchedulePlan
    context: ParallelContext
    results: list[HeadResult]

    def __call__(
        self,
        microbatches: Iterator[MicroBatch],
        model: Any,  # noqa: ANN401 - upstream type
    ) -> tuple[ModelOutput | torch.Tensor, Callable[[ModelOutput], tuple[Any, Any, Any]]]:
        microbatch = next(microbatches)
        request = ForwardRequest(microbatch=microbatch, needs=self.plan.head.needs)

        def loss_func(
            output: ModelOutput,
        ) -> tuple[torch.Tensor, torch.Tensor, Mapping[str, Metric]]:
            result = self.plan.head(output, microbatch, self.context)
            if self.plan.sink is not None and result.records:
                self.plan.sink(result.records)
            kept = HeadResult(
                loss_sum=result.loss_sum.detach(),
                num_target_tokens=result.num_target_tokens,
                metrics=result.metrics,
            )
            self.results.append(kept)
            # The schedule adds counts up in an int32 tensor.
            return result.loss_sum, result.num_target_tokens.to(torch.int32), result.metrics

        return forward(model, request), loss_func


def _reduce(results: Sequence[HeadResult], context: ParallelContext) -> ScheduleResult:
    """Collective over dp_cp_group of the last stage."""
    losses = torch.stack([result.loss_sum.to(torch.float64) for result in results])
    counted = int(sum(int(result.num_target_tokens) for result in results))
    total = sum_counts([counted], context.dp_cp_group, device=context.device)[0]
    return ScheduleResult(
        loss_sum=float(all_reduce(losses.sum(), context.dp_cp_group)),
        num_target_tokens=total,
        metrics=reduce_metrics(
            [result.metrics for result in results], num_target_tokens=total, context=context
        ),
    )


def _to_all_stages(result: ScheduleResult | None, context: ParallelContext) -> ScheduleResult:
    """Collective over pp_group: the last stage's numbers, on every stage."""
    box = [result]
    if context.sizes.pp > 1:
        group = context.pp_group
        dist.broadcast_object_list(
            box, group=group, group_src=context.sizes.pp - 1, device=context.device
        )
    if box[0] is None:
        raise ContractError("run_schedule: expected a result from the last pipeline stage.")
    return box[0]
