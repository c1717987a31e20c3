"""Runs benchmarks, each in a process of its own with one thread, and collects their lines.

A process each keeps one benchmark's caches, compiled code and peers out of another's figures, and
lets a hanging peer be stopped. They run one after the other: side by side they would slow each
other down.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.suite import Benchmark

ROOT = Path(__file__).resolve().parents[1]
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
)
_SETTINGS = {
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DO_NOT_TRACK": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
}


class Ending(StrEnum):
    """How a benchmark's process ended."""

    DONE = "done"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED OUT"
    NOT_THERE = "NOT THERE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one benchmark gave.

    Attributes:
        benchmark: which.
        ending: how its process ended; lines printed before a bad end are kept.
        seconds: wall time.
        lines: its JSON lines, in order.
        log: last lines of its error output, of a bad end only.
    """

    benchmark: Benchmark
    ending: Ending
    seconds: float = 0.0
    lines: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    log: str = ""


def run(benchmark: Benchmark, *, python: Path, scratch: Path, package: str = "benchmarks") -> Run:
    """Run one benchmark to its end or its limit.

    Args:
        benchmark: which.
        python: the interpreter, of the environment that has the peers.
        scratch: a folder for its log and the caches of peers.
        package: where its module is.
    """
    if not (ROOT / package.replace(".", "/") / f"{benchmark.module}.py").exists():
        return Run(benchmark=benchmark, ending=Ending.NOT_THERE)
    scratch.mkdir(parents=True, exist_ok=True)
    log = scratch / f"{benchmark.module}.log"
    begin = time.monotonic()
    with log.open("w", encoding="utf-8") as errors:
        child = subprocess.Popen(
            [str(python), "-m", f"{package}.{benchmark.module}"],
            cwd=ROOT,
            env=_environment(scratch),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(timeout=benchmark.limit_s)
            ending = Ending.DONE if child.returncode == 0 else Ending.FAILED
        except subprocess.TimeoutExpired:
            _kill(child)
            output, _ = child.communicate()
            ending = Ending.TIMED_OUT
        except BaseException:
            _kill(child)
            raise
    return Run(
        benchmark=benchmark,
        ending=ending,
        seconds=time.monotonic() - begin,
        lines=_json_lines(output),
        log="" if ending is Ending.DONE else _tail(log),
    )


def _environment(scratch: Path) -> dict[str, str]:
    """One thread, no network, no GPU; caches of peers stay in the scratch folder."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    threads = dict.fromkeys(_THREADS, "1")
    cache = str(scratch / "hugging_face")
    return {**os.environ, **threads, **_SETTINGS, "HF_HOME": cache, "PYTHONPATH": path}


def _kill(child: subprocess.Popen[str]) -> None:
    """Kill the benchmark and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _json_lines(output: str) -> list[dict[str, Any]]:
    """Lines that are JSON objects; peers print other things too."""
    found = []
    for line in output.splitlines():
        with suppress(json.JSONDecodeError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


def _tail(log: Path, lines: int = 15) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])
