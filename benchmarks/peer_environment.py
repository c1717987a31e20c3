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


def make(*, uv: Path) -> bool:
    """Make the layer, unless it is there with the same pins and the same base.

    What cannot be installed is said, and is MISSING in the results; the next call tries again.

    Args:
        uv: the installer.

    Returns:
        Whether all peers are installed.
    """
    stamp = _LAYER / ".pins"
    base = sysconfig.get_paths()["purelib"]
    pins = "\n".join([base, *(path.read_text("utf-8") for path in _PINS)])
    digest = hashlib.sha256(pins.encode()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return True
    sys.stdout.write(f"setting up the peers in {_LAYER}\n")
    sys.stdout.flush()
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--clear", str(_LAYER)], check=True
    )
    site = peer_site()
    if site is None:
        raise FileNotFoundError(f"expected site-packages in {_LAYER}, found none")
    site.joinpath("shared.pth").write_text(f"{base}\n", encoding="utf-8")
    done = [_install(path, uv=uv) for path in _PINS]
    if all(done):
        stamp.write_text(digest, encoding="utf-8")
    return all(done)


def _install(pins: Path, *, uv: Path) -> bool:
    """Install one list of pins, without resolving anything; whether that went well."""
    python = str(_LAYER / "bin" / "python")
    options = ("--quiet", "--no-deps", "--require-hashes")
    command = [str(uv), "pip", "install", "--python", python, *options, "-r", str(pins)]
    if subprocess.run(command, check=False).returncode == 0:
        return True
    sys.stderr.write(f"{pins.name}: not installed, so these peers will be MISSING\n")
    return False


if __name__ == "__main__":
    make(uv=Path(sys.executable).with_name("uv"))
