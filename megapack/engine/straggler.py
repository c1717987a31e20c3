"""Which rank is slow: each rank's own time in reading and in forwards, compared once a step.

In a step every rank waits for the slowest, so wall time says nothing. Own time does: on a CPU the
processor time of the thread that computes (waiting in gloo costs none), on CUDA the device time
between events around the forwards (never run; waiting in NCCL inside a forward counts, so compare
tp x cp groups there). Off by default; a comparison is one small collective and, on CUDA, a wait
for the device. megatron-core's StragglerDetector does the same with CUDA events and a socket of
its own, and does not work on a CPU.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from megapack.jobs.train import StragglerTiming

_PHASES = ("read", "forward")


class StepTimer(Protocol):
    """Times the steps of a run on this rank."""

    def reading[Read](self, items: Iterator[Read]) -> Iterator[Read]:
        """The same items; the time until each is there counts as reading."""
        ...

    def attach(self, chunks: Sequence[Any]) -> None:
        """Time the forwards of these model chunks from now on."""
        ...

    def compare(self) -> dict[str, float]:
        """Collective over the world when timing is on: metrics of the step, and a fresh start."""
        ...


def step_timer(timing: StragglerTiming, device: torch.device) -> StepTimer:
    """The timer of a run.

    Args:
        timing: of the job.
        device: where forwards run.
    """
    if timing is StragglerTiming.OFF:
        return NoTimer()
    return RankTimer(CudaClock() if device.type == "cuda" else ThreadClock(), device)


class NoTimer:
    """Measures nothing and communicates nothing."""

    def reading[Read](self, items: Iterator[Read]) -> Iterator[Read]:
        """The iterator itself."""
        return items

    def attach(self, chunks: Sequence[Any]) -> None:
        """Leave the chunks as they are."""

    def compare(self) -> dict[str, float]:
        """No metrics."""
        return {}


class Clock(Protocol):
    """Sums the time between starts and stops."""

    def start(self) -> None:
        """Begin a stretch."""
        ...

    def stop(self) -> None:
        """End the stretch that began last."""
        ...

    def take(self) -> float:
        """Seconds since the last `take`."""
        ...


class ThreadClock:
    """Processor time of the calling thread."""

    def __init__(self) -> None:
        self._total = self._began = 0.0

    def start(self) -> None:
        """Begin a stretch."""
        self._began = time.thread_time()

    def stop(self) -> None:
        """End it."""
        self._total += time.thread_time() - self._began

    def take(self) -> float:
        """Seconds since the last `take`."""
        total, self._total = self._total, 0.0
        return total


class CudaClock:
    """Device time between events on the current stream. Never run."""

    def __init__(self) -> None:
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        """Mark the stream."""
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        self._events.append((first, last))

    def stop(self) -> None:
        """Mark the stream again."""
        self._events[-1][1].record()

    def take(self) -> float:
        """Seconds since the last `take`; waits for the device."""
        torch.cuda.synchronize()
        total = float(sum(first.elapsed_time(last) for first, last in self._events)) / 1000.0
        self._events.clear()
        return total


class RankTimer:
    """Times reading by the wall, forwards by a clock of their own.

    Args:
        clock: for forwards.
        device: for the comparison.
    """

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self._clock = clock
        self._device = device
        self._read = 0.0

    def reading[Read](self, items: Iterator[Read]) -> Iterator[Read]:
        """The same items, timed."""
        while True:
            began = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self._read += time.perf_counter() - began
            yield item

    def attach(self, chunks: Sequence[Any]) -> None:
        """Hook the chunks."""
        for chunk in chunks:
            chunk.register_forward_pre_hook(lambda *_: self._clock.start())
            chunk.register_forward_hook(lambda *_: self._clock.stop())

    def compare(self) -> dict[str, float]:
        """Collective over the world: for each phase the slowest rank and how slow it is.

        Returns:
            `straggler_<phase>_rank`, `_s` (its seconds) and `_ratio` (to the median of all ranks).
        """
        mine = torch.tensor([self._read, self._clock.take()], device=self._device)
        self._read = 0.0
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine)
        metrics: dict[str, float] = {}
        for phase, seconds in zip(_PHASES, torch.stack(every, dim=1).tolist(), strict=True):
            metrics |= slowest(phase, seconds)
        return metrics


def slowest(phase: str, seconds: Sequence[float]) -> dict[str, float]:
    """Metrics of one phase.

    Args:
        phase: name.
        seconds: of each rank.
    """
    rank = max(range(len(seconds)), key=seconds.__getitem__)
    median = statistics.median(seconds)
    return {
        f"straggler_{phase}_rank": rank,
        f"straggler_{phase}_s": seconds[rank],
        f"straggler_{phase}_ratio": seconds[rank] / median if median > 0 else 1.0,
    }
