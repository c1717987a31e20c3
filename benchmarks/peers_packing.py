"""Peers of planning: the packing algorithms of other tools, as published, on bare lengths.

A peer is a function that imports what it needs (ImportError when it is not there) and gives a
packer: lengths and capacity to CPU seconds and the rows it made. Only the algorithm is timed, not
the making of its input. Rows come back as the lengths they hold, because some peers give no more;
`check` compares them with the input: every length as often as it was given, no row too long.

`run_peer` runs a peer in a process of its own and stops it at a limit of CPU time, so that a busy
machine does not decide what is too slow. `python -m benchmarks.peers_packing NAME PROBLEMS` is that
process.
"""

import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from benchmarks.alone import import_alone
from benchmarks.packing_problems import Int32, Problem

Rows = list[list[int]]
Packer = Callable[[Int32, int], tuple[float, Rows]]

CPU_LIMIT_S = 30.0
BATCH = 1000
MOST_TOKENS = 200_000_000
"""Tokens that a peer gets that packs tokens, not lengths: a byte each, several times."""


class PeerResult(NamedTuple):
    """What a peer made of a problem.

    Attributes:
        problem: what was asked.
        rows: rows it used; 0 when there is no result.
        seconds: CPU seconds; the limit when it was stopped there.
        note: "" for a checked result, else why there is none, such as `> 30 s`.
    """

    problem: Problem
    rows: int
    seconds: float
    note: str = ""

    @property
    def stopped(self) -> bool:
        """Whether it was stopped at the limit, so that it takes at least `seconds`."""
        return self.note.startswith(">")


def llama_factory_whole() -> Packer:
    """LLaMA-Factory's greedy knapsack over the whole set."""
    module = import_alone("llamafactory.data.processor.processor_utils")

    def pack(lengths: Int32, capacity: int) -> tuple[float, Rows]:
        numbers = lengths.tolist()
        return _timed(lambda: module.greedy_knapsack(numbers, capacity))

    return pack


def llama_factory_batched() -> Packer:
    """The same as LLaMA-Factory calls it: in batches of 1000 documents."""
    module = import_alone("llamafactory.data.processor.processor_utils")

    def pack(lengths: Int32, capacity: int) -> tuple[float, Rows]:
        numbers = lengths.tolist()
        batches = [numbers[i : i + BATCH] for i in range(0, len(numbers), BATCH)]
        return _timed(
            lambda: [row for batch in batches for row in module.greedy_knapsack(batch, capacity)]
        )

    return pack


def axolotl() -> Packer:
    """axolotl's multipack (numba), one process, its default groups; timed after compiling."""
    nothing = {"reduce_and_broadcast": None}
    module = import_alone(
        "axolotl.utils.samplers.multipack",
        stand_ins={
            "axolotl.utils.distributed": nothing,
            "axolotl.utils.logging": {"get_logger": logging.getLogger},
        },
    )

    def call(lengths: Int32, capacity: int) -> Any:  # noqa: ANN401 - the peer is untyped
        return module.pack_parallel(
            lengths, capacity, group_size=100_000, bin_size=capacity, num_processes=1
        )

    def pack(lengths: Int32, capacity: int) -> tuple[float, Rows]:
        call(lengths[:2], capacity)
        seconds, rows = _timed(lambda: call(lengths, capacity))
        return seconds, _lengths_of(rows, lengths)

    return pack


def trl() -> Packer:
    """TRL's best-fit-decreasing over the whole set (it packs tokens; here a byte each)."""
    import pyarrow as pa

    module = import_alone("trl.data_utils")

    def pack(lengths: Int32, capacity: int) -> tuple[float, Rows]:
        offsets = np.zeros(lengths.size + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:])
        values = np.zeros(int(offsets[-1]), dtype=np.int8)
        table = pa.table({"input_ids": pa.ListArray.from_arrays(offsets, values)})
        seconds, packed = _timed(lambda: module._pack_bfd(table, capacity))
        return seconds, packed["seq_lengths"].to_pylist()

    return pack


def megatron_bridge() -> Packer:
    """Megatron-Bridge's first-fit-decreasing."""
    module = import_alone(
        "megatron.bridge.data.packing.algorithms",
        stand_ins={"megatron.bridge.utils.safe_pickle": {"safe_load_npy": None}},
    )

    def pack(lengths: Int32, capacity: int) -> tuple[float, Rows]:
        numbers = lengths.tolist()
        return _timed(lambda: module.first_fit_decreasing(numbers, capacity))

    return pack


def automodel() -> Packer:
    """Automodel's greedy knapsack (emptiest row first)."""
    module = import_alone("nemo_automodel.components.datasets.llm.neat_packing")

    def pack(lengths: Int32, capacity: int) -> tuple[float, Rows]:
        numbers = lengths.tolist()
        seconds, rows = _timed(lambda: module.greedy_knapsack(numbers, capacity))
        return seconds, _lengths_of(rows, lengths)

    return pack


def nemo_rl() -> Packer:
    """NeMo-RL's first-fit-decreasing; what carries its name on PyPI is a placeholder."""
    module = import_alone("nemo_rl.data.packing.algorithms")

    def pack(lengths: Int32, capacity: int) -> tuple[float, Rows]:
        numbers = lengths.tolist()
        packer = module.FirstFitDecreasingPacker(capacity)
        seconds, rows = _timed(lambda: packer.pack(numbers))
        return seconds, _lengths_of(rows, lengths)

    return pack


PEERS: dict[str, Callable[[], Packer]] = {
    "megatron-bridge": megatron_bridge,
    "automodel": automodel,
    "axolotl": axolotl,
    "llama-factory": llama_factory_whole,
    "llama-factory batches": llama_factory_batched,
    "trl": trl,
    "nemo-rl": nemo_rl,
}


def check(rows: Rows, lengths: Int32, capacity: int) -> None:
    """Every length as often as it was given, no row over the capacity.

    Raises:
        ValueError: the peer lost, invented or overfilled something.
    """
    flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64)
    if not np.array_equal(np.sort(flat), np.sort(lengths)):
        raise ValueError(f"expected {lengths.size} documents once each, found {flat.size} others")
    fullest = max(map(sum, rows))
    if fullest > capacity:
        raise ValueError(f"expected rows of at most {capacity}, found {fullest}")


def run_peer(name: str, problems: Sequence[Problem]) -> Iterator[PeerResult]:
    """Results in the order of the problems, each as soon as it is there.

    Raises:
        ImportError: the peer is not installed, or what it needs is not.
    """
    waiting = list(problems)
    while waiting:
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers_packing", name, json.dumps(waiting)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for answer in _answers(child):
            if "missing" in answer:
                child.wait()
                raise ImportError(answer["missing"])
            yield PeerResult(waiting.pop(0), answer["rows"], answer["seconds"], answer["note"])
        code = child.wait()
        if code == -signal.SIGPROF:
            yield PeerResult(waiting.pop(0), 0, CPU_LIMIT_S, f"> {CPU_LIMIT_S:g} s")
        elif waiting:
            yield PeerResult(waiting.pop(0), 0, 0.0, f"failed, exit code {code}")


def _answers(child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Answers among the lines that a peer prints."""
    for line in child.stdout or ():
        if line.startswith('{"peer"'):
            yield json.loads(line)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of a call and its result; the process ends at the limit."""
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
    begin = time.process_time()
    result = work()
    seconds = time.process_time() - begin
    signal.setitimer(signal.ITIMER_PROF, 0)
    return seconds, result


def _lengths_of(rows: Sequence[Sequence[int]], lengths: Int32) -> Rows:
    """Rows of document indices as rows of lengths."""
    values = lengths.tolist()
    return [[values[index] for index in row] for row in rows]


def _answer(**values: object) -> None:
    sys.stdout.write(json.dumps({"peer": sys.argv[1], **values}) + "\n")
    sys.stdout.flush()


def _serve() -> None:
    """Solve the problems on the command line with the named peer."""
    try:
        pack = PEERS[sys.argv[1]]()
    except ImportError as error:
        _answer(missing=str(error))
        return
    for problem in (Problem(*values) for values in json.loads(sys.argv[2])):
        lengths = problem.lengths()
        if sys.argv[1] == "trl" and int(lengths.sum(dtype=np.int64)) > MOST_TOKENS:
            _answer(rows=0, seconds=0.0, note=f"not run: over {MOST_TOKENS} tokens")
            continue
        seconds, rows = pack(lengths, problem.capacity)
        try:
            check(rows, lengths, problem.capacity)
        except ValueError as error:
            _answer(rows=len(rows), seconds=seconds, note=f"WRONG: {error}")
        else:
            _answer(rows=len(rows), seconds=seconds, note="")


if __name__ == "__main__":
    _serve()
