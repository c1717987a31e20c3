"""Initial weights that do not depend on the parallel layout.

megatron-core draws weights in the order in which a process builds its modules, so pipeline
stages start from different draws. Here every parameter is drawn whole, from a seed that is a hash
of its global name, and this rank keeps its slice: the same model at any tp, pp, cp and dp.
"""

import hashlib
import math
import re
from collections.abc import Iterator
from typing import Any

import torch

from megapack.jobs.model import ModelJob
from megapack.parallel.context import ParallelContext

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.(.*)$")
_EXPERT = re.compile(r"^(.*\.experts)\.local_experts\.(\d+)\.(.*)$")
# Experts that are computed together hold a numbered matrix each.
_GROUPED = re.compile(r"^(.*\.experts)\.(linear_fc\d)\.weight(\d+)$")
_EMBEDDING = "embedding.word_embeddings.weight"
_HEAD = "output_layer.weight"


def initialize_weights(
    chunk: Any,  # noqa: ANN401 - upstream type
    *,
    job: ModelJob,
    context: ParallelContext,
    vocab_size: int,
    seed: int,
    part: str = "",
) -> None:
    """Fill every parameter of a model chunk in place, or those of a part of it.

    Matrices are normal with `init_std`; those that write to the residual stream are scaled by
    1/sqrt(2 * num_layers); norms are one, as they were built; biases, and rows that only pad the
    vocabulary, are zero. Experts are drawn under their numbers in the whole model.

    Args:
        chunk: GPTModel of this rank.
        job: shape and standard deviation.
        context: this rank.
        vocab_size: real vocabulary, padding not included.
        seed: seed of the run.
        part: with what the names of the parameters begin that are filled.
    """
    with torch.no_grad():
        for name, parameter in global_parameters(chunk, tied=job.tie_embeddings):
            if not name.startswith(part):
                continue
            if name.endswith(".bias"):
                # Upstream leaves memory as it finds it when it is told not to initialise.
                parameter.zero_()
            if parameter.dim() == 1:
                continue
            std = job.init_std
            if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
                std /= math.sqrt(2 * job.num_layers)
            whole = _draw(name, _whole_shape(name, parameter, context, vocab_size), std, seed)
            parameter.copy_(tp_slice(name, whole, parameter, context))


def global_parameters(
    chunk: Any,  # noqa: ANN401 - upstream type
    *,
    tied: bool,
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Parameters under the names that they have in the whole model.

    Args:
        chunk: GPTModel of this rank.
        tied: the LM head shares the embedding's weight; a last stage's copy of it goes by the
            embedding's name.
    """
    for local_name, parameter in chunk.named_parameters():
        name = local_name
        if found := _LAYER.match(name):
            layer = chunk.decoder.layers[int(found[1])].layer_number - 1
            name = f"decoder.layers.{layer}.{found[2]}"
        name = _GROUPED.sub(r"\1.local_experts.\3.\2.weight", name)
        if found := _EXPERT.match(name):
            path = local_name[: local_name.index(".experts.") + len(".experts")]
            first = _first_expert(chunk.get_submodule(path))
            name = f"{found[1]}.{first + int(found[2])}.{found[3]}"
        elif tied and name == _HEAD:
            name = _EMBEDDING
        yield name, parameter


def _first_expert(experts: Any) -> int:  # noqa: ANN401 - upstream type
    """Number in the whole model of the first expert that this rank holds."""
    return int(experts.ep_group.rank()) * int(experts.num_local_experts)


def is_expert(name: str) -> bool:
    """Whether a global name is that of a routed expert's parameter."""
    return ".experts." in name


def tensor_place(name: str, context: ParallelContext) -> tuple[int, int]:
    """Size and rank of the axis that a parameter's matrix is split over.

    Args:
        name: global name.
        context: this rank.
    """
    if is_expert(name):
        return context.sizes.etp, context.etp_rank
    return context.sizes.tp, context.tp_rank


def tp_slice(
    name: str, whole: torch.Tensor, parameter: torch.nn.Parameter, context: ParallelContext
) -> torch.Tensor:
    """This tensor parallel rank's part of a whole parameter.

    Args:
        name: global name.
        whole: the parameter as one process has it, vocabulary not padded.
        parameter: this rank's parameter, for its shape and split dimension.
        context: this rank.

    Returns:
        A tensor of the parameter's shape; vocabulary rows that do not exist are zero.
    """
    if not getattr(parameter, "tensor_model_parallel", False):
        return whole
    size, rank = tensor_place(name, context)
    dim: int = parameter.partition_dim  # type: ignore[attr-defined]
    if "linear_fc1" in name:
        # Each rank holds [gate; up] of its columns, so the halves are cut by themselves.
        return torch.cat([half.chunk(size, dim)[rank] for half in whole.chunk(2, dim)], dim)
    if name in (_EMBEDDING, _HEAD):
        rows = parameter.shape[0]
        part = whole[rank * rows : (rank + 1) * rows]
        return torch.cat((part, part.new_zeros(rows - part.shape[0], part.shape[1])))
    return whole.chunk(size, dim)[rank]


def _whole_shape(
    name: str, parameter: torch.nn.Parameter, context: ParallelContext, vocab_size: int
) -> list[int]:
    shape = list(parameter.shape)
    if name in (_EMBEDDING, _HEAD):
        return [vocab_size, shape[1]]
    if getattr(parameter, "tensor_model_parallel", False):
        size, _ = tensor_place(name, context)
        shape[parameter.partition_dim] *= size  # type: ignore[attr-defined]
    return shape


def _draw(name: str, shape: list[int], std: float, seed: int) -> torch.Tensor:
    """float32, CPU: the same on every rank, machine and thread count."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.empty(shape).normal_(0.0, std, generator=generator)
