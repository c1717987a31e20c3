"""What the ranks of a backend need, as far as it shows without torch, on the machine they run on.

Ranks look closer. Here a backend is refused only where it surely cannot run, before any start.
"""

from importlib.util import find_spec
from pathlib import Path

from megapack.errors import ConfigError
from megapack.jobs.model import BackendName

_ANYWHERE = frozenset({BackendName.AUTO, BackendName.PORTABLE})
_ENGINE = "transformer_engine"
_DEVICES = ("nvidia*", "nvhost*", "nvmap", "dxg")
"""Files of CUDA devices: servers and desktops, Tegra (two kinds), and Windows' Linux."""


def check_backend(backend: BackendName, *, devices: Path = Path("/dev")) -> None:
    """Refuse a backend that this machine has nothing for.

    Args:
        backend: as the job says.
        devices: folder of device files.

    Raises:
        ConfigError: it needs CUDA, and there is no CUDA device or no Transformer Engine.
    """
    if backend in _ANYWHERE:
        return
    missing = [
        what
        for what, found in {
            "a CUDA device": any(any(devices.glob(name)) for name in _DEVICES),
            f"the package {_ENGINE}": find_spec(_ENGINE) is not None,
        }.items()
        if not found
    ]
    if missing:
        raise ConfigError(
            f"backend = {backend.value}: expected {' and '.join(missing)}, found none here. "
            "Install megapack[gpu] on a CUDA machine, or use backend = portable."
        )
