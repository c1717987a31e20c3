"""A model chunk to the files of a Hugging Face folder: the way back of `hf_weights`.

Letters: G = key/value heads, d = width of a head.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from megapack.jobs.model import ModelJob
from megapack.model.initialize import global_parameters
from megapack.steps.hugging_face.folder import INDEX, WEIGHTS
from megapack.steps.hugging_face.names import EMBEDDING, HEAD, Joined, origin

_METADATA = {"format": "pt"}
"""transformers refuses files that do not say this."""


def write_weights(
    chunk: Any,  # noqa: ANN401 - upstream type
    *,
    job: ModelJob,
    folder: Path,
    file_bytes: int,
) -> None:
    """Write all weights of a whole model, in its own precision.

    Args:
        chunk: GPTModel of one process (tp 1, pp 1).
        job: its shape; vocab_size is known.
        folder: exists.
        file_bytes: a file is closed before it grows beyond this, unless one tensor is larger.
    """
    files = _Files(folder, file_bytes)
    for name, tensor in tensors(chunk, job):
        files.add(name, tensor)
    files.close()


class _Files:
    """Tensors on their way to files; one file is held in memory at a time."""

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        self._held: dict[str, torch.Tensor] = {}
        self._held_bytes = 0
        self._written_bytes = 0
        self._names: list[list[str]] = []

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take the next tensor."""
        if self._held and self._held_bytes + tensor.nbytes > self._file_bytes:
            self._write()
        self._held[name] = tensor
        self._held_bytes += tensor.nbytes

    def close(self) -> None:
        """Write what is held; give the files their final names, and write the index of several."""
        self._write()
        if len(self._names) == 1:
            (self._folder / _draft(0)).rename(self._folder / WEIGHTS)
            return
        places: dict[str, str] = {}
        for number, names in enumerate(self._names):
            final = f"model-{number + 1:05d}-of-{len(self._names):05d}.safetensors"
            (self._folder / _draft(number)).rename(self._folder / final)
            places |= dict.fromkeys(names, final)
        index = {"metadata": {"total_size": self._written_bytes}, "weight_map": places}
        (self._folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _write(self) -> None:
        save_file(self._held, self._folder / _draft(len(self._names)), metadata=_METADATA)
        self._names.append(list(self._held))
        self._written_bytes += self._held_bytes
        self._held, self._held_bytes = {}, 0


def _draft(number: int) -> str:
    return f"part-{number}.safetensors"


def tensors(
    chunk: Any,  # noqa: ANN401 - upstream type
    job: ModelJob,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Hugging Face names and tensors, on the CPU; rows that only pad the vocabulary are left out.

    Args:
        chunk: GPTModel of one process.
        job: its shape.
    """
    for name, parameter in global_parameters(chunk, tied=job.tie_embeddings):
        made_of = origin(name)
        whole = parameter.detach()
        if made_of.tensors[0] in (EMBEDDING, HEAD):
            whole = whole[: job.vocab_size]
        for tensor, part in zip(made_of.tensors, _parts(whole, made_of.joined, job), strict=True):
            yield tensor, part.cpu().contiguous()


def _parts(whole: torch.Tensor, joined: Joined, job: ModelJob) -> list[torch.Tensor]:
    if joined is Joined.STACKED:
        return list(whole.chunk(2))
    if joined is Joined.BY_GROUP:
        groups, rest = job.num_query_groups, whole.shape[1:]
        by_group = whole.reshape(groups, -1, job.head_dim, *rest)
        parts = (by_group[:, :-2], by_group[:, -2], by_group[:, -1])
        return [part.reshape(-1, *rest) for part in parts]
    return [whole]
