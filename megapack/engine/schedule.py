"""The adapter to megatron-core's forward-backward schedules.

The only place that knows their callback contract: return (loss sum, rank-local divisor,
metrics) with `calculate_per_token_loss` on, so that the schedule scales nothing and
`finalize_model_grads` divides gradients once by the divisor over dp x cp. The two-value form
multiplies by cp and divides by microbatches. Pipeline stages exchange tensors of a known shape
where all microbatches of a step have one, and say the shape first where they differ.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import get_model_config

from megapack.batch.iterate import StepBatch, StepShape
from megapack.batch.microbatch import MicroBatch
from megapack.batch.mtp import mtp_target_counts
from megapack.engine.metrics import StepTotals, reduce_step
from megapack.engine.replay import RoutersOfRun, check_replay
from megapack.errors import ContractError
from megapack.model.draft import draft_of
from megapack.model.forward import ForwardRequest, ModelOutput, Need, forward
from megapack.model.keywords import bare
from megapack.model.moe import begin_router_step, router_losses
from megapack.model.offload import suspended_offload
from megapack.model.replay import ReplayMode
from megapack.outputs.draft import draft_loss
from megapack.outputs.head import HeadResult, OutputHead, Record
from megapack.outputs.loss import step_divisor, tokens_per_chunk
from megapack.outputs.mtp import MtpWeights, mtp_loss
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
        sink: takes the records of each microbatch, on the writing rank, as soon as they are there;
            recorded routes at the end of the step.
        replay: what the routers of a MoE model do; to replay, the step needs the stage
            `AttachRoutes`.
    """

    step: StepBatch
    head: OutputHead
    phase: Phase = Phase.TRAIN
    sink: RecordSink | None = None
    replay: ReplayMode = ReplayMode.OFF


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResult:
    """What a step gave, equal on all ranks.

    Attributes:
        loss_sum: sum of the losses over the step.
        num_target_tokens: positions whose label counted.
        divisor: what the loss was divided by for the gradients: target tokens for a token-mean,
            documents with a target for a sequence-mean.
        metrics: reduced as each metric says.
    """

    loss_sum: float
    num_target_tokens: int
    divisor: int
    metrics: Mapping[str, float]

    @property
    def mean_loss(self) -> float | None:
        """The step's loss, None for a step without any target."""
        return self.loss_sum / self.divisor if self.divisor else None


def run_schedule(
    chunks: Sequence[Any], plan: SchedulePlan, context: ParallelContext
) -> ScheduleResult:
    """Collective over the world: run one step's microbatches through the model.

    In TRAIN, call `zero_grad_buffer` on the chunks before; afterwards their gradients are summed
    over dp x cp and divided by the step's divisor.

    Args:
        chunks: from `wrap_ddp` for TRAIN, or `build_model` for FORWARD_ONLY.
        plan: what to run.
        context: this rank.

    Returns:
        Reduced numbers, on all ranks.

    Raises:
        ContractError: the step has no microbatch.
        ConfigError: the routers cannot do what the plan says.
    """
    if plan.step.num_microbatches == 0:
        raise ContractError(
            "run_schedule: expected at least one microbatch, found a step without rows. Do not run "
            "an empty step."
        )
    results: list[HeadResult] = []
    routers = _routers(chunks, plan, context)
    step = _ForwardStep(
        plan=plan,
        context=context,
        results=results,
        routers=routers,
        mtp=_mtp_weights(chunks, plan, context),
        draft=_draft_weights(chunks, plan, context),
    )
    begin_router_step(
        chunks,
        num_real=plan.step.normalizer.num_real_tokens,
        num_targets=step_divisor(plan.head, plan.step.normalizer),
    )
    shape = plan.step.shape
    with ExitStack() as phase:
        if plan.phase is Phase.FORWARD_ONLY:
            phase.enter_context(torch.no_grad())
            phase.enter_context(suspended_offload(chunks))
        phase.enter_context(_exchanging(chunks, shape))
        phase.enter_context(routers.session)
        get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=plan.step.microbatches,
            model=list(chunks),
            num_microbatches=plan.step.num_microbatches,
            seq_length=plan.step.row_length if shape is None else shape.length,
            micro_batch_size=1 if shape is None else shape.rows,
            forward_only=plan.phase is Phase.FORWARD_ONLY,
        )
    routes = routers.records()
    if plan.sink is not None and routes:
        plan.sink(routes)
    totals = reduce_step(results, context) if context.is_last_stage else None
    result = _to_all_stages(totals, context)
    metrics = {**result.metrics, **routers.metrics()}
    if plan.phase is Phase.TRAIN:
        metrics |= router_losses(chunks, context, num_real=plan.step.normalizer.num_real_tokens)
    return replace(result, metrics=metrics)


def _routers(chunks: Sequence[Any], plan: SchedulePlan, context: ParallelContext) -> RoutersOfRun:
    config = get_model_config(chunks[0])
    check_replay(
        plan.replay,
        trains=plan.phase is Phase.TRAIN,
        recomputes=config.recompute_granularity is not None,
        has_sink=plan.sink is not None,
    )
    return RoutersOfRun(chunks, plan.replay, context)


@contextmanager
def _exchanging(chunks: Sequence[Any], shape: StepShape | None) -> Iterator[None]:
    """Let pipeline stages say shapes before tensors inside the block, when there is not one shape.

    Set here and not where the model is configured, because megatron-core refuses it there for the
    default MoE dispatcher of a dense model (docs/upstream/dense_variable_lengths.md).
    """
    configs = {id(config): config for config in map(get_model_config, chunks)}.values()
    before = [config.variable_seq_lengths for config in configs]
    try:
        for config in configs:
            config.variable_seq_lengths = shape is None or config.variable_seq_lengths
        yield
    finally:
        for config, value in zip(configs, before, strict=True):
            config.variable_seq_lengths = value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ForwardStep:
    """megatron-core's forward_step_func: next microbatch, forward, and a loss callback."""

    plan: SchedulePlan
    context: ParallelContext
    results: list[HeadResult]
    routers: RoutersOfRun
    mtp: MtpWeights | None
    draft: MtpWeights | None

    def __call__(
        self,
        microbatches: Iterator[MicroBatch],
        model: Any,  # noqa: ANN401 - upstream type
    ) -> tuple[ModelOutput | torch.Tensor, Callable[[ModelOutput], tuple[Any, Any, Any]]]:
        microbatch = next(microbatches)
        request = ForwardRequest(microbatch=microbatch, needs=self._needs())

        def loss_func(
            output: ModelOutput,
        ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
            result = self.plan.head(output, microbatch, self.context)
            if self.plan.sink is not None and result.records:
                self.plan.sink(result.records)
            metrics, loss_sum = dict(result.metrics), result.loss_sum
            if self.mtp is not None:
                added = mtp_loss(output, self.mtp, self.context)
                metrics |= added.metrics
                loss_sum = loss_sum + added.loss_sum
            if self.draft is not None:
                added = draft_loss(output, microbatch, self.draft, self.context)
                metrics |= added.metrics
                loss_sum = loss_sum + added.loss_sum
            kept = HeadResult(
                loss_sum=result.loss_sum.detach(),
                num_target_tokens=result.num_target_tokens,
                metrics=metrics,
                divisor=result.divides_by,
            )
            self.results.append(kept)
            # The schedule adds divisors up in an int32 tensor. It keeps what comes third until
            # the step ends: nothing, so that no output of a microbatch outlives it.
            return loss_sum, result.divides_by.to(torch.int32), {}

        with self.routers.forward(microbatch):
            output = forward(model, request)
        return output, loss_func

    def _needs(self) -> Need:
        needs = self.plan.head.needs
        needs |= Need.NOTHING if self.mtp is None else Need.MTP
        return needs | (Need.NOTHING if self.draft is None else Need.DRAFT)


def _mtp_weights(
    chunks: Sequence[Any], plan: SchedulePlan, context: ParallelContext
) -> MtpWeights | None:
    """Collective over dp_group when training a model with MTP layers; else None."""
    depths = chunks[0].config.mtp_num_layers
    if not depths:
        return None
    scale = chunks[0].config.mtp_loss_scaling_factor
    return _weights_ahead(plan, context, depths=depths, scale=scale)


def _draft_weights(
    chunks: Sequence[Any], plan: SchedulePlan, context: ParallelContext
) -> MtpWeights | None:
    """Collective over dp_group when training a model with a draft; else None."""
    draft = draft_of(bare(chunks[-1]))
    if draft is None:
        return None
    return _weights_ahead(plan, context, depths=draft.depth, scale=1.0)


def _weights_ahead(
    plan: SchedulePlan, context: ParallelContext, *, depths: int, scale: float
) -> MtpWeights | None:
    """Collective over dp_group when training: of losses 1 to `depths` tokens further ahead."""
    if plan.phase is Phase.FORWARD_ONLY:
        return None
    return MtpWeights(
        scale=scale,
        divisor=step_divisor(plan.head, plan.step.normalizer),
        layer_targets=tuple(mtp_target_counts(plan.step.rows, context, depths=depths)),
        tokens_per_chunk=tokens_per_chunk(plan.head),
    )


def _to_all_stages(totals: StepTotals | None, context: ParallelContext) -> ScheduleResult:
    """Collective over pp_group: the last stage's numbers, on every stage."""
    box = [totals]
    if context.sizes.pp > 1:
        group = context.pp_group
        dist.broadcast_object_list(
            box, group=group, group_src=context.sizes.pp - 1, device=context.device
        )
    if box[0] is None:
        raise ContractError("run_schedule: expected a result from the last pipeline stage.")
    return ScheduleResult(
        loss_sum=box[0].loss_sum,
        num_target_tokens=box[0].num_target_tokens,
        divisor=box[0].divisor,
        metrics=box[0].metrics,
    )
