"""What megatron-core needs to run on CPU over gloo, and how ranks find one another.

Every change to torch or megatron-core that the CPU needs is made in `install_cpu_runtime`, each
with its reason; `docs/upstream/` says which are faults upstream. None is made when CUDA is
available. `prepare_import` must run before megatron.core is imported for the first time: with it
the import takes about 8 s instead of 25 s.
"""

import logging
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from importlib.metadata import version
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from megapack.errors import ConfigError

SUPPORTED_MCORE = "0.19."
_INSTALLED: list[object] = []


def prepare_import() -> None:
    """Make `torch.compile` the identity before megatron.core is imported on a CPU.

    megatron-core decorates functions with it at import time, which loads dynamo and inductor
    (two thirds of the import time) for code that runs eagerly on CPU anyway. Does nothing when
    CUDA is available or when megatron.core is there already.
    """
    if torch.cuda.is_available() or "megatron.core" in sys.modules:
        return
    _replace(torch, "compile", _compile_nothing)


def install_cpu_runtime() -> None:
    """Put the CPU stand-ins in place. Call once in a worker, before models are built.

    Does nothing the second time.

    Raises:
        ConfigError: CUDA is available, or megatron-core is not a version this was made for.
    """
    if torch.cuda.is_available():
        raise ConfigError(
            "install_cpu_runtime: expected a machine without CUDA, found "
            f"{torch.cuda.device_count()} device(s). Do not call it; megatron-core runs as it is."
        )
    check_mcore_version()
    if _INSTALLED:
        return
    prepare_import()
    from megatron.core.tensor_parallel import mappings
    from megatron.core.tensor_parallel import random as mcore_random
    from megatron.core.transformer.moe import token_dispatcher

    from megapack.parallel import cpu_collectives, cpu_device

    default_stream = cpu_device.NullStream()
    # mappings, p2p_communication, DDP buffers and RoPE allocate on current_device().
    _replace(torch.cuda, "current_device", lambda: cpu_device.CPU)
    # p2p_communication and the checkpoint writers wait for the device.
    _replace(torch.cuda, "synchronize", _nothing)
    # DDP asks for the current stream before it starts a gradient sync.
    _replace(torch.cuda, "current_stream", lambda *_, **__: default_stream)
    _replace(torch.cuda, "stream", lambda *_, **__: nullcontext())
    # Activation recompute saves and restores CUDA's random state.
    _replace(mcore_random, "_get_cuda_rng_state", cpu_device.cpu_rng_state)
    _replace(mcore_random, "_set_cuda_rng_state", cpu_device.set_cpu_rng_state)
    # model_parallel_cuda_manual_seed fills a tracker through torch.cuda.get_rng_state.
    _replace(mcore_random, "_CUDA_RNG_STATE_TRACKER", cpu_device.CpuRngTracker())
    _replace(mcore_random, "_CUDA_RNG_STATE_TRACKER_INITIALIZED", value=True)
    # MoE dispatchers copy split sizes to the host on a stream of their own, and only then make
    # them numbers; all_to_all_single takes no tensors.
    _replace(torch.cuda, "Stream", cpu_device.NullStream)
    _replace(torch.cuda, "Event", cpu_device.NullEvent)
    _replace(token_dispatcher, "maybe_move_tensor_to_cpu", cpu_device.host_numbers)
    # Expert tensor parallel ranks exchange unequal parts, which gloo refuses.
    for name, wrapped in (
        ("_gather_along_first_dim", cpu_collectives.gather_unequal),
        ("_reduce_scatter_along_first_dim", cpu_collectives.reduce_scatter_unequal),
    ):
        _replace(mappings, name, wrapped(getattr(mappings, name)))
    # Schedules, gradient clipping and optimizers hold "cuda" in literals.
    mode = cpu_device.CudaAsCpu()
    mode.__enter__()  # type: ignore[no-untyped-call]
    _INSTALLED.append(mode)


def check_mcore_version() -> None:
    """Refuse a megatron-core that the replaced names were not checked against.

    Raises:
        ConfigError: another version is installed.
    """
    found = version("megatron-core")
    if not found.startswith(SUPPORTED_MCORE):
        raise ConfigError(
            f"megatron-core {found}: expected {SUPPORTED_MCORE}*, because the CPU runtime replaces "
            "names inside it. Install megatron-core==0.19.2."
        )


def start_process_group(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str = "env://",
    timeout_s: float = 600.0,
) -> torch.device:
    """Join this process to its world: NCCL with CUDA, gloo without.

    Args:
        rank: global rank; torchrun's RANK when None.
        world_size: processes; torchrun's WORLD_SIZE when None.
        init_method: rendezvous, `file://` for forked worlds.
        timeout_s: seconds after which a collective fails.

    Returns:
        The device of this rank.

    Raises:
        ConfigError: neither the arguments nor the environment name rank and world size.
    """
    cuda = torch.cuda.is_available()
    device = torch.device("cpu")
    if cuda:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=init_method,
        rank=_from_environment("RANK", rank),
        world_size=_from_environment("WORLD_SIZE", world_size),
        timeout=timedelta(seconds=timeout_s),
        device_id=device if cuda else None,
    )
    logging.getLogger(__name__).info(
        "process group started rank=%d world_size=%d device=%s",
        dist.get_rank(),
        dist.get_world_size(),
        device,
    )
    return device


def stop_process_group() -> None:
    """Leave the world, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _from_environment(name: str, value: int | None) -> int:
    if value is not None:
        return value
    found = os.environ.get(name)
    if found is None:
        raise ConfigError(
            f"start_process_group: expected {name} in the environment, found none. Start the "
            "worker under torchrun, or pass rank and world_size."
        )
    return int(found)


def _replace(owner: ModuleType, name: str, value: object) -> None:
    setattr(owner, name, value)


def _nothing(*_: object, **__: object) -> None:
    """Stand-in for a call that has nothing to do on a CPU."""


def _compile_nothing(model: Callable[..., Any] | None = None, **_: object) -> Callable[..., Any]:
    """torch.compile that returns the function as it is, with and without arguments."""
    return model if model is not None else (lambda function: function)
