"""Model, optimizer, schedule and random states as a folder of megatron-core's `torch_dist` files.

The folder can be read at another layout than it was written at: weights and moments are stored by
their place in the whole model (`fully_reshardable`). Random states are of a rank and are read at
the same layout only; with dropout 0 nothing draws from them. Reading executes pickles, so a
folder must have been checked against its manifest first.
"""

import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

from megapack.engine.draft_state import check_draft
from megapack.errors import ContractError
from megapack.model.optimizer import load_optimizer_state, optimizer_sharded_state
from megapack.parallel.context import ParallelContext


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainState:
    """What a checkpoint holds and a resume changes.

    Attributes:
        chunks: this rank's DDP-wrapped model chunks.
        optimizer: megatron-core's optimizer over them.
        scheduler: its learning rate schedule.
        context: this rank.
    """

    chunks: Sequence[Any]
    optimizer: Any
    scheduler: Any
    context: ParallelContext


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """The state as it was at one moment, in host memory, on its way to a folder.

    Attributes:
        folder: the same path on every rank.
        request: megatron-core's save, planned: `async_fn` writes, `finalize_fns` communicate.
        arguments: of `async_fn`; hold this rank's values.
    """

    folder: Path
    request: Any
    arguments: tuple[Any, ...]

    def file_names(self) -> tuple[str, ...]:
        """Files that `write` makes on this rank."""
        if self.request.async_fn is None:
            return ()
        return tuple(Path(bucket[0]).name for bucket in self.arguments[1])

    def write(self) -> None:
        """Write this rank's files. No communication: any thread may do it."""
        if self.request.async_fn is not None:
            self.request.async_fn(*self.arguments, **self.request.async_fn_kwargs)

    def finalize(self) -> None:
        """Collective over the world, when all ranks have written: the index, on rank 0."""
        for finalize in self.request.finalize_fns:
            finalize()
        if dist.get_rank() == 0:
            _forget_place(self.folder / ".metadata")


def take_snapshot(state: TrainState, folder: Path) -> Snapshot:
    """Collective over the world: copy the state into host memory.

    Args:
        state: what to save; later changes to it do not reach the snapshot.
        folder: where it will be written; empty, the same path on every rank, there on every node.
    """
    model = model_sharded_state([chunk.module for chunk in state.chunks], state.context)
    request = dist_checkpointing.save(
        {
            **model,
            "optimizer": optimizer_sharded_state(
                state.optimizer, model["model"], is_loading=False, metadata=_metadata(state.context)
            ),
            "scheduler": state.scheduler.state_dict(),
            "random_states": _random_states(),
        },
        str(folder),
        async_sharded_save=True,
        async_strategy="mcore",
    )
    return Snapshot(folder=folder, request=request, arguments=_copied(request))


def save_state(state: TrainState, folder: Path) -> None:
    """Collective over the world: write the state into an empty folder on each node's disk.

    Args:
        state: what to write; it stays as it is.
        folder: the same path on every rank; exists on every node.
    """
    snapshot = take_snapshot(state, folder)
    snapshot.write()
    dist.barrier()
    snapshot.finalize()


def _copied(request: Any) -> tuple[Any, ...]:  # noqa: ANN401 - upstream type
    """Arguments of the write, with values that no later update reaches.

    Upstream copies from the device to the host, but hands on what is on the host already.
    """
    if request.async_fn is None:
        return tuple(request.async_fn_args)
    rank, live, results = request.async_fn_args
    buckets = []
    for (file, key, (blobs, on_host)), (_, _, (_, sources)) in zip(
        request.preload_fn(), live, strict=True
    ):
        tensors = [
            (item, tensor.clone() if tensor.data_ptr() == source.data_ptr() else tensor)
            for (item, tensor), (_, source) in zip(on_host, sources, strict=True)
        ]
        buckets.append((file, key, (blobs, tensors)))
    return rank, buckets, results


def load_state(state: TrainState, folder: Path, *, same_layout: bool) -> None:
    """Collective over the world: read a folder written by `save_state`, at any layout.

    Args:
        state: freshly built; receives weights, moments, schedule and random states.
        folder: verified files; the same path on every rank.
        same_layout: the folder was written at this run's layout; random states are read then.
    """
    model = model_sharded_state([chunk.module for chunk in state.chunks], state.context)
    wanted: dict[str, Any] = {
        **model,
        "optimizer": optimizer_sharded_state(
            state.optimizer, model["model"], is_loading=True, metadata=_metadata(state.context)
        ),
    }
    if same_layout:
        wanted["random_states"] = _random_states()
    loaded = _interned(dist_checkpointing.load(wanted, str(folder)))
    _load_model([chunk.module for chunk in state.chunks], loaded)
    load_optimizer_state(state.optimizer, loaded["optimizer"])
    state.scheduler.load_state_dict(loaded["scheduler"])
    if same_layout:
        _set_random_states(loaded["random_states"])


def load_model(chunks: Sequence[Any], folder: Path, context: ParallelContext) -> None:
    """Collective over the world: read the weights only, at any layout.

    Args:
        chunks: from `build_model`, not wrapped.
        folder: verified files; the same path on every rank.
        context: this rank.

    Raises:
        ConfigError: a chunk has a draft and the checkpoint has none. The other way round the draft
            is left out, with a warning.
    """
    check_draft(chunks[-1], folder)
    loaded = dist_checkpointing.load(model_sharded_state(chunks, context), str(folder))
    _load_model(chunks, loaded)


def model_sharded_state(chunks: Sequence[Any], context: ParallelContext) -> dict[str, Any]:
    """The weights by their place in the whole model, under the key `model`.

    Args:
        chunks: from `build_model`, not wrapped; one, as there is no interleaving.
        context: this rank.
    """
    (chunk,) = chunks
    state = chunk.sharded_state_dict(metadata=_metadata(context))
    return {"model": {name: part for name, part in state.items() if not _is_extra(name)}}


def _load_model(chunks: Sequence[Any], loaded: dict[str, Any]) -> None:
    (chunk,) = chunks
    differing = chunk.load_state_dict(loaded["model"], strict=False)
    missing = [name for name in differing.missing_keys if not _is_extra(name)]
    if missing or differing.unexpected_keys:
        raise ContractError(
            f"checkpoint: expected the parameters of the model, found {len(missing)} missing "
            f"{missing[:3]} and {len(differing.unexpected_keys)} unknown "
            f"{differing.unexpected_keys[:3]}. Read it with the model that wrote it."
        )


def _is_extra(name: str) -> bool:
    """Whether an entry is Transformer Engine's own state, which is empty without FP8.

    A checkpoint holds none of it, so that either backend reads what the other wrote.
    """
    return name.endswith("._extra_state")


def _forget_place(index: Path) -> None:
    """Take the folder's path and a random id out of torch's index file.

    Nothing reads them, and without them equal states are equal files: a checkpoint made again has
    the same digest, and what was made from it is found.

    Args:
        index: a file that this process has just written.
    """
    metadata = pickle.loads(index.read_bytes())
    metadata.storage_meta = None
    index.write_bytes(pickle.dumps(metadata))


def _interned(value: Any) -> Any:  # noqa: ANN401 - any nested state
    """The same state with every string as the one object that Python's literals are.

    A pickle names an object that it has seen before by number. With strings that only look equal
    to the literals in the code, the next checkpoint would differ from that of a run that was
    never stopped.
    """
    if isinstance(value, str):
        return sys.intern(value)
    if type(value) is dict:
        return {_interned(key): _interned(part) for key, part in value.items()}
    if type(value) is list:
        return [_interned(part) for part in value]
    return value


def _metadata(context: ParallelContext) -> dict[str, Any]:
    return {
        "distrib_optim_sharding_type": "fully_reshardable",
        "distrib_optim_fully_reshardable_mem_efficient": False,
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": context.dp_cp_group,
    }


def _random_states() -> ShardedObject:
    data = {"torch": torch.get_rng_state(), "tracker": get_cuda_rng_tracker().get_states()}
    if torch.cuda.is_available():
        data["cuda"] = torch.cuda.get_rng_state()
    world = dist.get_world_size()
    return ShardedObject("random_states", data, (world,), (dist.get_rank(),), replica_id=0)


def _set_random_states(data: dict[str, Any]) -> None:
    torch.set_rng_state(data["torch"])
    get_cuda_rng_tracker().set_states(data["tracker"])
    if "cuda" in data:
        torch.cuda.set_rng_state(data["cuda"])
