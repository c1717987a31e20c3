"""Weights of a Hugging Face folder to this rank's parameters, each read as the part it needs.

Files are mapped, not loaded: a rank reads its own layers and its own tensor parallel slice of
them. Letters: G = key/value heads of this rank.
"""

from contextlib import ExitStack
from typing import Any

import torch
from safetensors import safe_open

from megapack.errors import ContractError, DataError
from megapack.jobs.model import ModelJob
from megapack.model.initialize import global_parameters
from megapack.parallel.context import ParallelContext
from megapack.steps.hugging_face.folder import ModelFolder
from megapack.steps.hugging_face.names import EMBEDDING, HEAD, Joined, origin


def read_weights(
    chunk: Any,  # noqa: ANN401 - upstream type
    *,
    job: ModelJob,
    folder: ModelFolder,
    context: ParallelContext,
) -> None:
    """Fill every parameter of a model chunk in place, in the chunk's own precision.

    Vocabulary rows that only pad are zero.

    Args:
        chunk: GPTModel of this rank, built from `job`.
        job: shape of the model.
        folder: checked to be of that shape.
        context: this rank.

    Raises:
        DataError: a head that should be tied to the embedding is not equal to it.
        ContractError: a parameter has another shape than its tensors.
    """
    with torch.no_grad(), ExitStack() as stack:
        reader = _Reader(folder, context, stack)
        for name, parameter in global_parameters(chunk, tied=job.tie_embeddings):
            made_of = origin(name)
            if made_of.joined is Joined.BY_GROUP:
                whole = _queries_keys_values(reader, made_of.tensors, parameter, job)
            else:
                whole = torch.cat([reader.part(tensor, parameter) for tensor in made_of.tensors])
            if made_of.tensors == (EMBEDDING,) and job.tie_embeddings:
                _check_tied(whole, reader, parameter)
            if whole.shape[1:] != parameter.shape[1:] or whole.shape[0] > parameter.shape[0]:
                raise ContractError(
                    f"parameter {name}: expected {list(parameter.shape)}, found "
                    f"{list(whole.shape)} in {folder.path}."
                )
            parameter[: whole.shape[0]].copy_(whole)
            # The vocabulary alone is padded.
            parameter[whole.shape[0] :].zero_()


class _Reader:
    """This rank's parts of tensors, from files that stay open meanwhile."""

    def __init__(self, folder: ModelFolder, context: ParallelContext, stack: ExitStack) -> None:
        self._folder = folder
        self.context = context
        self._stack = stack
        self._files: dict[str, Any] = {}

    @property
    def where(self) -> str:
        """The folder, for messages."""
        return str(self._folder.path)

    def has(self, tensor: str) -> bool:
        """The folder holds this tensor."""
        return tensor in self._folder.tensors

    def part(self, tensor: str, parameter: torch.nn.Parameter) -> torch.Tensor:
        """This rank's slice of a tensor, in the file's dtype, on the CPU.

        Args:
            tensor: Hugging Face name.
            parameter: says along which dimension it is split, if at all.
        """
        shape = self._folder.tensors[tensor].shape
        first, end, dim = 0, shape[0], 0
        if getattr(parameter, "tensor_model_parallel", False):
            dim = parameter.partition_dim  # type: ignore[attr-defined]
            # The vocabulary is padded, so that the last ranks may hold less than their share.
            padded = tensor in (EMBEDDING, HEAD)
            share = parameter.shape[0] if padded else shape[dim] // self.context.sizes.tp
            rank = self.context.tp_rank
            first, end = min(rank * share, shape[dim]), min((rank + 1) * share, shape[dim])
        found = self._opened(self._folder.tensors[tensor].file).get_slice(tensor)
        part: torch.Tensor = found[first:end] if dim == 0 else found[:, first:end]
        return part

    def whole(self, tensor: str) -> torch.Tensor:
        """A tensor in the file's dtype, on the CPU.

        Args:
            tensor: Hugging Face name.
        """
        found: torch.Tensor = self._opened(self._folder.tensors[tensor].file).get_tensor(tensor)
        return found

    def _opened(self, file: str) -> Any:  # noqa: ANN401 - no type upstream
        if file not in self._files:
            opened = safe_open(self._folder.path / file, framework="pt")
            self._files[file] = self._stack.enter_context(opened)
        return self._files[file]


def _check_tied(embedding: torch.Tensor, reader: _Reader, parameter: torch.nn.Parameter) -> None:
    """A head that was written out beside the embedding it is tied to must be equal to it."""
    if reader.has(HEAD) and not torch.equal(reader.part(HEAD, parameter), embedding):
        raise DataError(
            f"{reader.where}: config.json says tie_word_embeddings, so {HEAD} was expected to be "
            f"{EMBEDDING}, found other values. Set tie_word_embeddings to false if they are meant."
        )


def _queries_keys_values(
    reader: _Reader, tensors: tuple[str, ...], parameter: torch.nn.Parameter, job: ModelJob
) -> torch.Tensor:
    """This rank's rows of the joined projection.

    Where tp ranks share a key/value head, they share the rows of its group, whichever these are.
    """
    tp = reader.context.sizes.tp
    if job.num_query_groups >= tp:
        return _by_group([reader.part(tensor, parameter) for tensor in tensors], job)
    whole = _by_group([reader.whole(tensor) for tensor in tensors], job)
    return whole.chunk(tp)[reader.context.tp_rank]


def _by_group(parts: list[torch.Tensor], job: ModelJob) -> torch.Tensor:
    """[G * (queries per group + 2) * d, ...] from q, k, v: each group's queries, key and value."""
    rest = parts[0].shape[1:]
    groups = parts[1].shape[0] // job.head_dim
    return torch.cat([part.reshape(groups, -1, *rest) for part in parts], 1).reshape(-1, *rest)
