"""What a step costs and how much of the machine it uses: floating point operations, MFU, memory.

Operations of a step, forward and backward, recomputation not counted:

    6 * matmul_parameters * real_tokens  +  12 * layers * heads * head_dim * pairs

`matmul_parameters` are the weights of matrices that a token passes (of experts only those it is
sent to), the LM head among them and the input embedding not. `pairs` are query-key pairs of
causal attention over the documents: n * (n + 1) / 2 for each of n tokens. Padding counts for
nothing, so that a worse packing shows as a lower MFU.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
import torch.distributed as dist

from megapack.jobs.model import TrainPrecision
from megapack.parallel.collectives import all_reduce
from megapack.parallel.context import ParallelContext

_TERA = 1e12

PEAK_FLOPS: Mapping[str, Mapping[TrainPrecision, float]] = {
    # Dense, without sparsity, from NVIDIA's data sheets; the longest name that fits counts.
    "A10": {TrainPrecision.BF16: 125 * _TERA, TrainPrecision.FP32: 31.2 * _TERA},
    "A100": {TrainPrecision.BF16: 312 * _TERA, TrainPrecision.FP32: 19.5 * _TERA},
    "L4": {TrainPrecision.BF16: 121 * _TERA, TrainPrecision.FP32: 30.3 * _TERA},
    "L40S": {TrainPrecision.BF16: 362 * _TERA, TrainPrecision.FP32: 91.6 * _TERA},
    "H100 PCIe": {TrainPrecision.BF16: 756 * _TERA, TrainPrecision.FP32: 51 * _TERA},
    "H100": {TrainPrecision.BF16: 989 * _TERA, TrainPrecision.FP32: 67 * _TERA},
    "H200": {TrainPrecision.BF16: 989 * _TERA, TrainPrecision.FP32: 67 * _TERA},
    "B200": {TrainPrecision.BF16: 2250 * _TERA, TrainPrecision.FP32: 75 * _TERA},
}
"""Peak operations a second of a device, by a word or words of its name and by arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """What a token and a query-key pair cost.

    Attributes:
        matmul_parameters: parameters of matrices that a token passes.
        pair_width: layers * heads * head_dim.
    """

    matmul_parameters: int
    pair_width: int

    def step_flops(self, *, num_real_tokens: int, pairs: int) -> float:
        """Floating point operations of a step, forward and backward."""
        return 6.0 * self.matmul_parameters * num_real_tokens + 12.0 * self.pair_width * pairs


def peak_flops(device_name: str, precision: TrainPrecision) -> float | None:
    """Peak operations a second of one device, None for one that is not known.

    >>> peak_flops("NVIDIA H100 PCIe", TrainPrecision.BF16) / 1e12
    756.0
    >>> peak_flops("some CPU", TrainPrecision.BF16) is None
    True
    """
    words = device_name.replace("-", " ").split()
    fitting = [name for name in PEAK_FLOPS if set(name.split()) <= set(words)]
    return PEAK_FLOPS[max(fitting, key=len)][precision] if fitting else None


def device_peak_flops(device: torch.device, precision: TrainPrecision) -> float | None:
    """Peak operations a second of this rank's device, None for a CPU or an unknown GPU."""
    if device.type != "cuda":
        return None
    return peak_flops(torch.cuda.get_device_name(device), precision)


def memory_bytes(device: torch.device) -> int:
    """Peak of allocated device memory since the last call; the resident set on a CPU."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return int(peak)
    return int(psutil.Process().memory_info().rss)


def model_cost(chunks: Sequence[Any], context: ParallelContext) -> ModelCost:
    """Collective over the world: what the whole model costs, from the parameters that are there.

    Args:
        chunks: from `build_model`, not wrapped.
        context: this rank.
    """
    config = chunks[0].config
    own = sum(_passed(name, p, config, context) for name, p in _named(chunks))
    # Every stage once: tp and ep are multiplied in, dp and cp hold the same.
    counts = torch.tensor(own, dtype=torch.float64, device=context.device)
    total = all_reduce(counts, context.pp_group if dist.is_initialized() else None)
    width = config.num_layers * config.num_attention_heads * config.kv_channels
    return ModelCost(matmul_parameters=round(float(total)), pair_width=width)


def _named(chunks: Sequence[Any]) -> Iterable[tuple[str, torch.nn.Parameter]]:
    for chunk in chunks:
        tied = chunk.share_embeddings_and_output_weights
        for name, parameter in chunk.named_parameters():
            is_input = "embedding.word_embeddings" in name
            # A tied weight is the LM head where the head is: once, on the last stage.
            if is_input and not (tied and chunk.post_process):
                continue
            yield name, parameter


def _passed(
    name: str,
    parameter: torch.nn.Parameter,
    config: Any,  # noqa: ANN401 - upstream type
    context: ParallelContext,
) -> float:
    """Elements of a matrix that one token passes, over its tp and ep shards."""
    if parameter.dim() < 2:  # noqa: PLR2004 - a matrix
        return 0.0
    split = context.sizes.tp if getattr(parameter, "tensor_model_parallel", False) else 1
    elements = float(parameter.numel() * split)
    if ".experts." not in name:
        return elements
    share = float(config.moe_router_topk) / float(config.num_moe_experts)
    return elements * context.sizes.ep * share
