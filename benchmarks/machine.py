"""What a result must be read with: the machine, the versions and the commit."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from benchmarks.runner import ROOT

_PACKAGES = (
    "numpy",
    "polars",
    "pyarrow",
    "numba",
    "tokenizers",
    "fastokens",
    "transformers",
    "torch",
    "megatron-core",
    "megatron-bridge",
    "nemo-automodel",
    "trl",
    "datasets",
    "axolotl",
    "llamafactory",
    "mosaicml-streaming",
)


def describe() -> dict[str, str]:
    """Names and values, for the head of a result."""
    cores = os.cpu_count()
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return {
        "processor": f"{_processor()}, {cores} cores, load at the start {load}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "commit": commit(),
    }


def commit() -> str:
    """Short commit, with a mark when files differ from it."""
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head} with local changes" if _git("status", "--porcelain", "-uno") else head


def versions(site: Path | None) -> dict[str, str]:
    """Versions of what is compared; a package that is not there is MISSING.

    Args:
        site: site-packages of the environment with the peers, besides our own.
    """
    return {name: _version(name, site) for name in _PACKAGES}


def version_of(name: str) -> str:
    """Of an installed package, or MISSING."""
    return _version(name, None)


def _version(name: str, site: Path | None) -> str:
    places = [str(site)] if site is not None else []
    for found in metadata.distributions(name=name, path=places):
        return found.version
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "MISSING"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
