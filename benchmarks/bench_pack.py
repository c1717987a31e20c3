"""Planning: ours and peers', compiled and not, on the same lengths; rows against lower bounds.

CPU seconds of one thread. Ours is timed after the compiled loops were loaded, as axolotl's are;
what loading costs is a line of its own. Every plan is checked: each document once, no row too
long.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.packing_problems import Problem
from benchmarks.peers_packing import PEERS, PeerResult, run_peer
from benchmarks.record import at_least, at_most, cpu_seconds, emit, missing
from megapack.packing.bounds import lower_bound
from megapack.packing.columns import fractional_plan
from megapack.packing.loops import Backend, compiled_loops
from megapack.packing.planner import best_fit_decreasing, plan_rows
from megapack.packing.row_plan import RowPlan
from megapack.packing.stream import plan_stream

MILLION = 1_000_000
LARGE = [Problem("lognormal", MILLION, 32768), Problem("lognormal", MILLION, 131072)]
SMALL = [
    Problem("lognormal", 10_000, 32768),
    Problem("lognormal", 100_000, 4096),
    Problem("lognormal", 100_000, 32768),
    Problem("lognormal", 100_000, 131072),
    Problem("uniform", 100_000, 32768),
    Problem("few", 100_000, 32768),
    Problem("two_humps", 100_000, 32768),
]
FEW = [Problem("few", 100_000, 32768, seed) for seed in range(3)]
FASTER_THAN = {
    ("megatron-bridge", 32768): 500,
    ("megatron-bridge", 131072): 500,
    ("automodel", 32768): 100,
    ("automodel", 131072): 100,
    ("axolotl", 32768): 50,
    ("axolotl", 131072): 10,
}
NEEDED = ("megatron-bridge", "automodel", "axolotl", "llama-factory")
"""Peers that a goal compares with; the others are there to be read."""

Ours = dict[Problem, tuple[float, float, int]]
"""CPU seconds compiled and in numpy, and rows."""


def main() -> None:
    """Print what loading costs, then every goal."""
    begin = time.process_time()
    loaded = compiled_loops() is not None
    emit("load_compiled", cpu_s=round(time.process_time() - begin, 3), compiled=loaded)
    ours = {problem: _ours(problem) for problem in [*SMALL, *LARGE]}
    _ours(Problem("lognormal", MILLION, 4096))
    _peers(ours)
    _ten_million()
    _rows()
    _one_pass()
    _memory()


def check(plan: RowPlan, lengths: np.ndarray, capacity: int) -> None:
    """Every document once, no row over the capacity.

    Raises:
        ValueError: the plan is wrong.
    """
    seen = np.zeros(lengths.size, dtype=np.int64)
    np.add.at(seen, plan.document, 1)
    filled = np.add.reduceat(lengths[plan.document].astype(np.int64), plan.offsets[:-1])
    if (seen != 1).any() or int(filled.max()) > capacity:
        raise ValueError("expected every document once and no row over the capacity")


def _ours(problem: Problem) -> tuple[float, float, int]:
    lengths = problem.lengths()
    plans = [best_fit_decreasing(lengths, problem.capacity, backend=b) for b in _BACKENDS]
    for plan in plans:
        check(plan, lengths, problem.capacity)
    if not np.array_equal(plans[0].document, plans[1].document):
        raise ValueError(f"{problem.name}: compiled and numpy plans differ")
    compiled, plain = (
        cpu_seconds(lambda b=backend: best_fit_decreasing(lengths, problem.capacity, backend=b))
        for backend in _BACKENDS
    )
    bound = lower_bound(np.bincount(lengths), problem.capacity)
    emit(
        "plan_rows",
        problem=problem.name,
        compiled_cpu_s=round(compiled, 5),
        numpy_cpu_s=round(plain, 5),
        rows=plans[0].num_rows,
        lower_bound=bound,
        over_bound_percent=round(100 * (plans[0].num_rows / bound - 1), 4),
    )
    return compiled, plain, plans[0].num_rows


_BACKENDS = (Backend.COMPILED, Backend.NUMPY)


def _peers(ours: Ours) -> None:
    for peer in PEERS:
        try:
            for result in run_peer(peer, [*SMALL, *LARGE]):
                _compare(peer, result, ours[result.problem])
        except ImportError as error:
            if peer not in NEEDED:
                emit("peer_packing", peer=peer, status="MISSING", why=str(error))
                continue
            for goal in ("P1", "P2") if peer == "llama-factory" else ("P1",):
                missing(goal, "plan 1M documents", peer=peer, why=str(error))


def _compare(peer: str, result: PeerResult, own: tuple[float, float, int]) -> None:
    problem = result.problem
    compiled, plain, rows = own
    if result.note and not result.stopped:
        emit("peer_packing", peer=peer, problem=problem.name, status=result.note)
        return
    emit(
        "peer_packing",
        peer=peer,
        problem=problem.name,
        cpu_s=result.note or round(result.seconds, 4),
        rows=result.rows,
        our_rows=rows,
        times_compiled=round(result.seconds / compiled, 1),
        times_numpy=round(result.seconds / plain, 1),
    )
    if problem not in LARGE:
        return
    fewer = result.stopped or rows <= result.rows
    factor = FASTER_THAN.get((peer, problem.capacity))
    details = {"rows": rows, "peer_rows": result.rows, "peer_note": result.note}
    what = f"plan {problem.name}"
    if factor:
        at_least("P1", what, result.seconds / compiled, factor, peer=peer, **details)
        at_most("P1", f"{what}: rows not more", 0 if fewer else 1, 0, unit="", peer=peer)
    elif peer == "llama-factory":
        at_least("P2", f"{what}, numpy", result.seconds / plain, 2, peer=peer, **details)


def _ten_million() -> None:
    problem = Problem("lognormal", 10 * MILLION, 32768)
    lengths = problem.lengths()
    loops = compiled_loops()
    if loops is None:
        missing("P1", "10M documents", peer="numba", why="the compiled loops cannot be had")
        return
    plan = best_fit_decreasing(lengths, problem.capacity, backend=Backend.COMPILED)
    check(plan, lengths, problem.capacity)
    sort = cpu_seconds(lambda: loops.sort_by_length(lengths, problem.capacity))
    compiled = cpu_seconds(
        lambda: best_fit_decreasing(lengths, problem.capacity, backend=Backend.COMPILED)
    )
    plain = cpu_seconds(
        lambda: best_fit_decreasing(lengths, problem.capacity, backend=Backend.NUMPY), repeats=1
    )
    at_most(
        "P1",
        f"plan {problem.name} / one counting sort",
        compiled / sort,
        4,
        cpu_s=round(compiled, 4),
        sort_cpu_s=round(sort, 4),
        numpy_cpu_s=round(plain, 3),
    )


def _rows() -> None:
    for problem in (
        Problem("lognormal", 100_000, 4096),
        Problem("lognormal", 100_000, 32768),
        Problem("lognormal", MILLION, 131072),
        Problem("uniform", 100_000, 32768),
    ):
        lengths = problem.lengths()
        rows = plan_rows(lengths, problem.capacity).num_rows
        bound = lower_bound(np.bincount(lengths), problem.capacity)
        over = 100 * (rows / bound - 1)
        at_most("P3", f"{problem.name}: over bound", over, 0.05, unit="%", rows=rows, floor=bound)
    for problem in FEW:
        lengths = problem.lengths()
        values, counts = np.unique(lengths, return_counts=True)
        answer = fractional_plan(
            values.astype(np.int64), counts.astype(np.int64), problem.capacity, bound=0, rounds=400
        )
        plan = plan_rows(lengths, problem.capacity)
        check(plan, lengths, problem.capacity)
        best_fit = best_fit_decreasing(lengths, problem.capacity).num_rows
        if answer is None:
            raise ValueError(f"{problem.name}: the linear program was not solved")
        at_most(
            "P3",
            f"{problem.name}: rows over LP bound",
            plan.num_rows - answer.bound,
            2,
            unit="rows",
            rows=plan.num_rows,
            best_fit_rows=best_fit,
            cpu_s=round(cpu_seconds(partial(plan_rows, lengths, problem.capacity), repeats=1), 3),
        )


def _one_pass() -> None:
    for capacity in (4096, 32768, 131072):
        problem = Problem("lognormal", 200_000, capacity)
        lengths = problem.lengths()
        one_pass = partial(plan_stream, lengths, capacity, most_open=512)
        plan = one_pass()
        check(plan, lengths, capacity)
        share = 100 * lower_bound(np.bincount(lengths), capacity) / plan.num_rows
        seconds = round(cpu_seconds(one_pass, repeats=1), 4)
        at_least("P4", problem.name, share, 99.7, unit="%", rows=plan.num_rows, cpu_s=seconds)


def _memory() -> None:
    """Peak memory of planning ten million documents, above that of holding their lengths."""
    for backend in _BACKENDS:
        command = [sys.executable, "-m", "benchmarks.bench_pack", "--memory", backend.name]
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        before, after, lengths = (int(word) for word in child.stdout.split()[-3:])
        emit(
            "plan_memory",
            documents=10 * MILLION,
            backend=backend.name,
            peak_mib=(after - before) >> 10,
            lengths_mib=lengths >> 20,
            bytes_per_document=round((after - before) * 1024 / (10 * MILLION), 1),
        )


def _peak_kib() -> int:
    """Most memory this program held; `getrusage` would count its parent's before it started."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0])


def _measure_memory(backend: Backend) -> Iterator[int]:
    """Peak KiB before and after planning, and the bytes of the lengths."""
    if backend is Backend.COMPILED:
        compiled_loops()
    lengths = np.empty(10 * MILLION, dtype=np.int32)
    rng = np.random.default_rng(0)
    for start in range(0, lengths.size, MILLION):
        drawn = np.exp(rng.normal(np.log(600), 1.2, MILLION)).clip(8, 32768)
        lengths[start : start + MILLION] = drawn
    yield _peak_kib()
    plan_rows(lengths, 32768, backend=backend)
    yield _peak_kib()
    yield lengths.nbytes


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        sys.stdout.write(" ".join(str(n) for n in _measure_memory(Backend[sys.argv[2]])) + "\n")
    else:
        main()
