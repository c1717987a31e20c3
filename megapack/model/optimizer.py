"""AdamW with warm-up and cosine decay, from megatron-core; and what makes its state reloadable.

Without Transformer Engine or Apex, megatron-core 0.19.2 falls back to torch's AdamW, whose state
has a `step` tensor for each parameter. Its DistributedOptimizer was not made for that in some
places, worked round here; `docs/upstream/` has a reproduction of each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from megatron.core.optimizer import (
    OptimizerConfig,
    ParamKey,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import MTP_GRAD_NORM_GROUP, param_group_identifier_keys
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from megapack.errors import ConfigError, ContractError
from megapack.jobs.train import OptimizerJob
from megapack.model.draft import NAME as DRAFT
from megapack.model.optimizer_buckets import places_without_bucket_padding
from megapack.parallel.context import ParallelContext

_SHARDING = "param_state_sharding_type"
_OF_EXPERTS = "is_expert_parallel"
_NO_PARAMETER = "no parameter on this rank"


def build_optimizer(
    chunks: list[Any],
    job: OptimizerJob,
    *,
    context: ParallelContext,
    draft_lr: float | None = None,
) -> Any:  # noqa: ANN401 - upstream type
    """megatron-core's optimizer over DDP-wrapped chunks.

    bfloat16 parameters get float32 main parameters. A draft's gradient is clipped by its own norm.

    Args:
        chunks: from `wrap_ddp`, with the same `distributed_optimizer`.
        job: hyperparameters.
        context: this rank.
        draft_lr: peak learning rate of a draft; None for that of all.
    """
    dtype = chunks[0].config.params_dtype
    config = OptimizerConfig(
        optimizer="adam",
        lr=job.lr,
        min_lr=job.min_lr,
        weight_decay=job.weight_decay,
        adam_beta1=job.beta1,
        adam_beta2=job.beta2,
        adam_eps=job.epsilon,
        clip_grad=job.clip_grad,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=job.distributed,
    )
    overrides = get_standard_config_overrides(config)
    if draft_lr is not None:
        rates = {"max_lr": draft_lr, "min_lr": job.min_lr / job.lr * draft_lr}
        overrides[ParamKey(name=f"*.{DRAFT}.*")] = rates
    return get_megatron_optimizer(
        config,
        chunks,
        config_overrides=overrides,
        use_gloo_process_groups=False,
        pg_collection=context.collection,
    )


def draft_gradient_norm(optimizer: Any) -> float:  # noqa: ANN401 - upstream type
    """Collective over the world: norm of a draft's gradient as it is, after `prepare_grads`.

    Args:
        optimizer: from `build_optimizer`, of chunks with a draft.
    """
    norms = optimizer._compute_grad_norms_by_group()
    return float(norms[MTP_GRAD_NORM_GROUP])


def build_scheduler(
    optimizer: Any,  # noqa: ANN401 - upstream type
    job: OptimizerJob,
    *,
    total_steps: int,
) -> OptimizerParamScheduler:
    """Linear warm-up from 0, then cosine to `min_lr` at `total_steps`. Call `.step(1)` a step.

    Args:
        optimizer: from `build_optimizer`.
        job: rates and warm-up, in steps.
        total_steps: steps of the whole run, not of this process.

    Raises:
        ConfigError: the warm-up takes the whole run, or `min_lr` is above `lr`.
    """
    if job.warmup_steps >= total_steps:
        raise ConfigError(
            f"OptimizerJob.warmup_steps = {job.warmup_steps}, expected fewer than the run's "
            f"{total_steps} steps. Shorten the warm-up or lengthen the run."
        )
    if job.min_lr > job.lr:
        raise ConfigError(
            f"OptimizerJob.min_lr = {job.min_lr}, expected at most lr = {job.lr}. Lower it."
        )
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=job.lr,
        min_lr=job.min_lr,
        lr_warmup_steps=job.warmup_steps,
        lr_decay_steps=total_steps,
        lr_decay_style="cosine",
        start_wd=job.weight_decay,
        end_wd=job.weight_decay,
        wd_incr_steps=total_steps,
        wd_incr_style="constant",
    )


def optimizer_sharded_state(
    optimizer: Any,  # noqa: ANN401 - upstream type
    model_state: dict[str, Any],
    *,
    is_loading: bool,
    metadata: dict[str, Any],
) -> dict[str, Any]:
    """The optimizer's state for megatron-core's dist_checkpointing.

    Args:
        optimizer: from `build_optimizer`.
        model_state: `sharded_state_dict` of the chunks.
        is_loading: the result receives a checkpoint; a fresh optimizer is then given empty
            moments, because upstream reads a `step` that does not exist yet.
        metadata: upstream's sharding metadata, the same when saving and loading.
    """
    if is_loading:
        prime_moments(optimizer)
    lend_steps(optimizer)
    with places_without_bucket_padding(parts(optimizer)):
        state: dict[str, Any] = optimizer.sharded_state_dict(
            model_state, is_loading=is_loading, metadata=metadata
        )
    return state


def load_optimizer_state(optimizer: Any, state: dict[str, Any]) -> None:  # noqa: ANN401 - upstream type
    """Load what `optimizer_sharded_state` described, and make it right.

    Upstream gives all parameters one shared `step` tensor, which torch's AdamW then advances once
    for each parameter: the bias correction would be wrong, silently.
    """
    inner = [part for part in parts(optimizer) if isinstance(part, DistributedOptimizer)]
    if len(inner) == len(parts(optimizer)):
        state = for_parts(parts(optimizer), state)
    optimizer.load_state_dict(state)
    for part in parts(optimizer):
        for moments in part.optimizer.state.values():
            if isinstance(moments.get("step"), torch.Tensor):
                moments["step"] = moments["step"].clone()


def for_parts(optimizers: Sequence[Any], state: Mapping[Any, Any]) -> dict[Any, Any]:
    """A loaded state in the form that this layout's optimizer takes.

    Moments are stored by their place in the model, whatever the layout. What stands beside them
    (rates, steps) is stored for each optimizer of a chain, and megatron-core chains a second one
    for experts at some layouts only; so a run that goes on at another layout finds another number
    of them. Every group takes what belongs to it from whichever optimizer holds it.

    Args:
        optimizers: the chain of this run.
        state: what dist_checkpointing has read: the stored entries and this run's moments.

    Raises:
        ContractError: the checkpoint holds no group like one of this run's.
    """
    saved = [
        one for one in (state, *state.values()) if isinstance(one, dict) and "optimizer" in one
    ]
    groups = [group for one in saved for group in one["optimizer"]["param_groups"]]
    chained = len(optimizers) > 1
    result: dict[Any, dict[str, Any]] = {}
    for number, part in enumerate(optimizers):
        mine = [_like(group, groups) for group in part.optimizer.param_groups]
        result[number] = {"optimizer": {"param_groups": mine}}
        if _SHARDING in saved[0]:
            # A part without parameters on this rank has no moments to read.
            own = state.get(number, {}) if chained else state
            result[number]["param_state"] = own.get("param_state", {})
            result[number][_SHARDING] = saved[0][_SHARDING]
    return result if chained else result[0]


def _like(group: Mapping[str, Any], saved: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The saved group of the same kind, said to be of this group's optimizer."""
    kinds = [key for key in param_group_identifier_keys if key != _OF_EXPERTS]
    for one in saved:
        if all(one.get(key) == group.get(key) for key in kinds):
            return {**one, _OF_EXPERTS: group[_OF_EXPERTS]}
    raise ContractError(
        f"load_optimizer_state: expected a parameter group with "
        f"{ {key: group.get(key) for key in kinds} }, found "
        f"{[{key: one.get(key) for key in kinds} for one in saved]} in the checkpoint."
    )


def prime_moments(optimizer: Any) -> None:  # noqa: ANN401 - upstream type
    """Give parameters without optimizer state zero moments and step 0.

    Transformer Engine's AdamW keeps its step in the group, and upstream makes its moments.
    """
    for part in parts(optimizer):
        if not isinstance(part.optimizer, torch.optim.AdamW):
            continue
        for group in part.optimizer.param_groups:
            for parameter in group["params"]:
                if not part.optimizer.state[parameter]:
                    part.optimizer.state[parameter] = {
                        "step": torch.tensor(0.0),
                        "exp_avg": torch.zeros_like(parameter.data),
                        "exp_avg_sq": torch.zeros_like(parameter.data),
                    }


def lend_steps(optimizer: Any) -> None:  # noqa: ANN401 - upstream type
    """Give an optimizer of the chain that has no parameter on this rank the others' step.

    A pipeline stage may hold no expert, and a dp rank's share of a small buffer no parameter.
    Upstream reads the step from a parameter's state and fails where there is none.
    """
    steps = [
        state["step"]
        for part in parts(optimizer)
        for key, state in part.optimizer.state.items()
        if key != _NO_PARAMETER and "step" in state
    ]
    for part in parts(optimizer):
        if not any(group["params"] for group in part.optimizer.param_groups):
            step = steps[0].clone() if steps else torch.tensor(0.0)
            part.optimizer.state[_NO_PARAMETER] = {"step": step}


def parts(optimizer: Any) -> list[Any]:  # noqa: ANN401 - upstream type
    """The optimizers that a ChainedOptimizer holds, or the one itself."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))
