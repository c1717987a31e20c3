"""Worlds of gloo ranks for tests, forked from a parent that has imported everything once.

Importing torch and megatron-core takes 10 s; a fork of a process that has done so takes
milliseconds. `RankServer` starts one such process. `run` asks it for a world: every rank joins
the world, runs a plain function with keyword arguments and sends its result back. Ranks cannot
outlive a case (timeout), the server or the test process.

A test function's file is loaded afresh in each rank, so it may live in the test module. A function
of `tests.support` is imported by its name, so it may return objects of its module's classes.
"""

import ctypes
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 3.0


class RankFailure(AssertionError):  # noqa: N818 - reads as a failed assertion
    """A rank raised, died or did not answer in time; the message has every rank's traceback."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What one world is asked to do."""

    file: str
    function: str
    world_size: int
    timeout_s: float
    arguments: dict[str, Any] = field(default_factory=dict)


class RankServer:
    """The warm parent. Use as a context manager; start-up takes as long as the imports."""

    def __enter__(self) -> "RankServer":
        ours, theirs = Pipe()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._connection = ours
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.support.ranks", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env=environment,
        )
        theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        try:
            self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def run(
        self,
        function: Callable[..., Any],
        *,
        world_size: int = 1,
        timeout_s: float = 60.0,
        **arguments: Any,
    ) -> list[Any]:
        """Run a function in a new world and return each rank's result, in rank order.

        Args:
            function: a top-level function; it finds the world started and the CPU runtime in
                place.
            world_size: ranks.
            timeout_s: seconds for the whole world.
            arguments: passed to the function; must pickle.

        Raises:
            RankFailure: with the traceback of every rank that failed.
        """
        code = function.__code__
        case = Case(
            file=code.co_filename,
            function=function.__qualname__,
            world_size=world_size,
            timeout_s=timeout_s,
            arguments=arguments,
        )
        self._connection.send(case)
        try:
            results, failures = self._connection.recv()
        except EOFError as error:
            raise RankFailure(f"the rank server died (exit {self._process.poll()})") from error
        if failures:
            text = "\n".join(f"--- rank {rank}\n{why}" for rank, why in sorted(failures.items()))
            raise RankFailure(f"{case.function} on {world_size} ranks failed:\n{text}")
        return results


def serve(connection: Connection) -> None:
    """Answer cases until the test process goes away."""
    die_with_parent()
    from megapack.parallel.runtime import prepare_import

    prepare_import()
    import pytest  # noqa: F401 - test modules import it

    # The first optimizer step imports it: 5 s in every rank of every world, if not here once.
    import torch._dynamo  # noqa: F401

    # polars too: most of a second in every rank that trains or extracts. It is imported and not
    # used here: after its first work it would hang in forks (docs/upstream/polars_after_fork.md).
    import megapack.engine.extract
    import megapack.engine.train  # noqa: F401
    import tests.support.tiny_updates  # noqa: F401

    # megatron-core collects garbage at each save: in a fork that is all of the imports otherwise.
    gc.freeze()
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        connection.send(run_world(case))


def run_world(case: Case) -> tuple[list[Any], dict[int, str]]:
    """Fork the ranks of one case, collect what they send, and leave none behind."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "rendezvous")
        ranks: dict[int, tuple[int, Connection]] = {}
        for rank in range(case.world_size):
            ours, theirs = Pipe(duplex=False)
            pid = os.fork()
            if pid == 0:
                ours.close()
                run_rank(case, rank, store, theirs)
            theirs.close()
            ranks[rank] = (pid, ours)
        try:
            return collect(case, {rank: pipe for rank, (_, pipe) in ranks.items()})
        finally:
            for pid, pipe in ranks.values():
                pipe.close()
                reap(pid)


def collect(case: Case, pipes: dict[int, Connection]) -> tuple[list[Any], dict[int, str]]:
    """Wait for every rank; after a first failure only for a moment, since the others hang."""
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    waiting = dict(pipes)
    deadline = time.monotonic() + case.timeout_s
    while waiting:
        ready = wait(list(waiting.values()), timeout=max(deadline - time.monotonic(), 0))
        if not ready:
            reason = "ended with the others" if failures else f"no answer in {case.timeout_s} s"
            failures.update(dict.fromkeys(waiting, reason))
            break
        for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
            try:
                good, value = waiting.pop(rank).recv()
            except EOFError:
                good, value = False, "died without an answer"
            (results if good else failures)[rank] = value
            if not good:
                deadline = min(deadline, time.monotonic() + GRACE_S)
    return [results.get(rank) for rank in range(case.world_size)], failures


def run_rank(case: Case, rank: int, store: str, pipe: Connection) -> None:
    """Body of a forked rank; never returns."""
    code = 1
    try:
        die_with_parent()
        from megapack.parallel.runtime import install_cpu_runtime, start_process_group

        start_process_group(
            rank=rank,
            world_size=case.world_size,
            init_method=f"file://{store}",
            timeout_s=case.timeout_s,
        )
        install_cpu_runtime()
        pipe.send((True, load(case)(**case.arguments)))
        code = 0
    except BaseException:  # noqa: BLE001 - CheckpointException is a BaseException
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def load(case: Case) -> Callable[..., Any]:
    """The case's function, from its file; by name from `tests.support`."""
    file = Path(case.file)
    if file.parent == ROOT / "tests" / "support":
        return getattr(importlib.import_module(f"tests.support.{file.stem}"), case.function)
    spec = importlib.util.spec_from_file_location("rank_case", case.file)
    if spec is None or spec.loader is None:
        raise RankFailure(f"no module at {case.file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["rank_case"] = module
    spec.loader.exec_module(module)
    return getattr(module, case.function)


def reap(pid: int) -> None:
    """Wait for a rank that is ending; kill it if it is not."""
    deadline = time.monotonic() + GRACE_S / 3
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def die_with_parent() -> None:
    """Linux: be killed when the process that started this one ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
