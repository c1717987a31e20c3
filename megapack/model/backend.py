"""Which implementation of the layers a process uses, decided before megatron-core is imported.

`te` has never been run: no GPU was available. `auto` therefore means portable, until an
installation says that the GPU tests have passed on it.
"""

import importlib
import importlib.util
import logging
import os
from importlib.metadata import PackageNotFoundError, version

import torch

from megapack.errors import ConfigError
from megapack.jobs.model import BackendName
from megapack.parallel.runtime import TransformerEngine

TESTED_VARIABLE = "MEGAPACK_TE_TESTED"
# cuDNN's attention takes true and padded offsets on these; elsewhere FlashAttention does the work,
# which takes one kind of offsets.
_TAKES_BOTH_OFFSETS = frozenset({9, 10})
_ENGINE = "transformer_engine"
_logger = logging.getLogger(__name__)


def select_backend(name: BackendName) -> BackendName:
    """The backend to build with.

    A backend that was asked for by name is never replaced by another. `te` becomes the way of
    handing over boundaries that this device supports.

    Returns:
        PORTABLE, TE_EXACT or TE_SLOTS.

    Raises:
        ConfigError: `te` without CUDA or without a Transformer Engine that loads.
    """
    if name is BackendName.PORTABLE or (name is BackendName.AUTO and not _is_tested()):
        return BackendName.PORTABLE
    _check_engine(name)
    if name in (BackendName.TE_EXACT, BackendName.TE_SLOTS):
        return name
    return boundaries_of_device(torch.cuda.get_device_capability()[0])


def engine_of(backend: BackendName) -> TransformerEngine:
    """Whether a process with this backend imports Transformer Engine."""
    if backend is BackendName.PORTABLE:
        return TransformerEngine.HIDDEN
    return TransformerEngine.USED


def boundaries_of_device(major: int) -> BackendName:
    """How boundaries are handed over on a device.

    Args:
        major: first number of its compute capability.
    """
    return BackendName.TE_EXACT if major in _TAKES_BOTH_OFFSETS else BackendName.TE_SLOTS


def installation() -> str:
    """What the GPU tests pass or fail on: the versions that matter, and the device.

    Raises:
        ConfigError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise ConfigError("installation: expected a CUDA device, found none.")
    words = [f"{name}={_version(name)}" for name in ("transformer-engine", "megatron-core")]
    return " ".join((*words, f"torch={torch.__version__}", torch.cuda.get_device_name()))


def _is_tested() -> bool:
    said = os.environ.get(TESTED_VARIABLE)
    if not said or not torch.cuda.is_available():
        return False
    if said == installation():
        return True
    _logger.warning(
        "backend auto is portable: %s names %r, this is %r; run make test-gpu again",
        TESTED_VARIABLE,
        said,
        installation(),
    )
    return False


def _check_engine(name: BackendName) -> None:
    missing = [
        what
        for what, found in {
            "a CUDA device": torch.cuda.is_available(),
            f"the package {_ENGINE}": importlib.util.find_spec(_ENGINE) is not None,
        }.items()
        if not found
    ]
    if missing:
        raise ConfigError(
            f"backend = {name.value}: expected {' and '.join(missing)}, found none here. Install "
            "megapack[gpu] on a CUDA machine, or use backend = portable."
        )
    try:
        importlib.import_module(f"{_ENGINE}.pytorch")
    except Exception as error:
        raise ConfigError(
            f"backend = {name.value}: expected {_ENGINE} to load, found "
            f"{type(error).__name__}: {error}. Repair the installation, or use backend = portable."
        ) from error


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
