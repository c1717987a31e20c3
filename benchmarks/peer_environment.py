"""The interpreter that sees the peers: our environment with one more layer on top.

The layer `.local/bench/peers` is a virtual environment whose path ends with our own site-packages,
so torch and everything else that is shared is there once. Packages in the layer come first.
`python -m benchmarks.peer_environment` makes it; without it the benchmarks run in our environment
and every peer is MISSING.
"""

import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks.runner import ROOT

_LAYER = ROOT / ".local" / "bench" / "peers"
_PINS = (ROOT / "requirements" / "bench.txt", ROOT / "requirements" / "bench-alone.txt")


def peer_python() -> Path:
    """The layer's interpreter, or ours when there is no layer."""
    layer = _LAYER / "bin" / "python"
    return layer if layer.exists() else Path(sys.executable)


def peer_site() -> Path | None:
    """The layer's site-packages, or None when there is no layer."""
    return next(iter(_LAYER.glob("lib/python*/site-packages")), None)


def make(*, uv: Path) -> None:
    """Make the layer, unless it is there with the same pins and the same base.

    Args:
        uv: the installer.

    Raises:
        CalledProcessError: a package could not be installed.
    """
    stamp = _LAYER / ".pins"
    base = sysconfig.get_paths()["purelib"]
    digest = hashlib.sha256(
        "\n".join([base, *(path.read_text("utf-8") for path in _PINS)]).encode()
    ).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return
    sys.stdout.write(f"setting up the peers in {_LAYER.relative_to(ROOT)}\n")
    sys.stdout.flush()
    _call(sys.executable, "-m", "venv", "--without-pip", "--clear", str(_LAYER))
    site = peer_site()
    if site is None:
        raise FileNotFoundError(f"expected site-packages in {_LAYER}, found none")
    site.joinpath("shared.pth").write_text(f"{base}\n", encoding="utf-8")
    pins = [word for path in _PINS for word in ("-r", str(path))]
    python = str(_LAYER / "bin" / "python")
    install = (str(uv), "pip", "install", "--quiet", "--python", python)
    _call(*install, "--no-deps", "--require-hashes", *pins)
    stamp.write_text(digest, encoding="utf-8")


def _call(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    make(uv=Path(sys.executable).with_name("uv"))
