"""What megatron-core needs to run on CPU over gloo, and how ranks find one another.

Every change to torch or megatron-core is in the table of `megapack.parallel.patches`; here it is
decided which are made. `prepare_import` must run before megatron.core is imported for the first
time.
"""

import logging
import os
import sys
from datetime import timedelta
from enum import Enum
from importlib.metadata import version

import torch
import torch.distributed as dist

from megapack.errors import ConfigError
from megapack.parallel.patches import When, install

SUPPORTED_MCORE = "0.19."


class TransformerEngine(Enum):
    """Whether a process may import Transformer Engine."""

    HIDDEN = "hidden"
    USED = "used"


def prepare_import(engine: TransformerEngine = TransformerEngine.HIDDEN) -> None:
    """Make the import of megatron.core cheap and safe. Does nothing once it is there.

    Args:
        engine: whether this process uses Transformer Engine. Hidden, it is never imported, so a
            broken installation of it does no harm.
    """
    if "megatron.core" in sys.modules:
        return
    if engine is TransformerEngine.HIDDEN:
        install(When.WITHOUT_TE)
    if not torch.cuda.is_available():
        install(When.CPU_IMPORT)


def install_runtime(engine: TransformerEngine = TransformerEngine.HIDDEN) -> None:
    """Make megatron-core run on this machine. Call once in a worker, before models are built.

    Does nothing the second time.

    Args:
        engine: whether this process uses Transformer Engine.

    Raises:
        ConfigError: megatron-core is not a version this was made for.
    """
    check_mcore_version()
    prepare_import(engine)
    if not torch.cuda.is_available():
        install(When.CPU)
    install(When.ALWAYS)


def install_cpu_runtime() -> None:
    """`install_runtime`, on a machine that must have no CUDA.

    Raises:
        ConfigError: CUDA is available, or megatron-core is not a version this was made for.
    """
    if torch.cuda.is_available():
        raise ConfigError(
            "install_cpu_runtime: expected a machine without CUDA, found "
            f"{torch.cuda.device_count()} device(s). Call install_runtime."
        )
    install_runtime()


def check_mcore_version() -> None:
    """Refuse a megatron-core that the replaced names were not checked against.

    Raises:
        ConfigError: another version is installed.
    """
    found = version("megatron-core")
    if not found.startswith(SUPPORTED_MCORE):
        raise ConfigError(
            f"megatron-core {found}: expected {SUPPORTED_MCORE}*, because names inside it are "
            "replaced. Install megatron-core==0.19.2."
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
