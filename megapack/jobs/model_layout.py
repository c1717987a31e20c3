"""Which parallel layouts a model can be trained at, decided from the two jobs alone.

Megatron-core finds some of these after the data has been read, some after the first step, and
some never. What it cannot do, or does wrong, is refused here by name, with the reason.
"""

from megapack.jobs.model import ModelJob
from megapack.jobs.moe import MoeJob
from megapack.layout.granularity import ParallelSizes


def layout_faults(model: ModelJob, sizes: ParallelSizes) -> list[str]:
    """Everything that keeps a model from running at a layout.

    Args:
        model: shape of the model.
        sizes: sizes of the run.

    Returns:
        One sentence a fault: what was expected, what was found, and why. Empty when it fits.
    """
    dense = [
        _multiple("ModelJob.num_attention_heads", model.num_attention_heads, "tp", sizes.tp),
        _groups_fit(model.num_query_groups, sizes.tp),
        _multiple("ModelJob.ffn_hidden_size", model.ffn_hidden_size, "tp", sizes.tp),
        _multiple("ModelJob.num_layers", model.num_layers, "pp", sizes.pp),
    ]
    experts = _without_experts(sizes) if model.moe is None else _with_experts(model.moe, sizes)
    return [fault for fault in (*dense, *experts) if fault]


def _without_experts(sizes: ParallelSizes) -> list[str]:
    return [
        f"{axis} = {size} with a model without experts, expected 1. Give ModelJob.moe, or spread "
        "the model with tp, pp or cp."
        for axis, size in (("ep", sizes.ep), ("etp", sizes.etp))
        if size > 1
    ]


def _with_experts(moe: MoeJob, sizes: ParallelSizes) -> list[str]:
    shared = moe.shared_expert_ffn_hidden_size or sizes.tp
    faults = [
        _multiple("MoeJob.num_experts", moe.num_experts, "ep", sizes.ep),
        _multiple("MoeJob.expert_ffn_hidden_size", moe.expert_ffn_hidden_size, "etp", sizes.etp),
        _multiple("MoeJob.shared_expert_ffn_hidden_size", shared, "tp", sizes.tp),
        _multiple("dp x cp x tp", sizes.dp * sizes.cp * sizes.tp, "ep x etp", sizes.ep * sizes.etp),
    ]
    if sizes.tp > 1 and not sizes.sequence_parallel:
        faults.append(
            f"tp = {sizes.tp} without sequence parallelism for a model with experts, expected "
            "sequence_parallel = true: megatron-core's MoELayer refuses to train otherwise, "
            "because every tp rank would route every token."
        )
    return faults


def _groups_fit(groups: int, tp: int) -> str:
    """A key/value head may lie on several ranks, several heads on one rank, but none in between."""
    if groups % tp == 0 or tp % groups == 0:
        return ""
    return (
        f"ModelJob.num_query_groups = {groups}, expected a multiple or a divisor of tp = {tp}. "
        "Change the model or tp."
    )


def _multiple(what: str, value: int, axis: str, size: int) -> str:
    if value % size == 0:
        return ""
    return f"{what} = {value}, expected a multiple of {axis} = {size}. Change the model or {axis}."
