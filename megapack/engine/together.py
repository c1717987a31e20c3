"""Slow work beside the steps, and how all ranks agree about it.

Only the main thread communicates: work in a thread touches files and the store. A wait for such
work is a row of short collectives, so that no rank stands in one for as long as an upload takes,
and a failure on one rank is raised on all.
"""

import threading
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from megapack.errors import MegapackError, RankError, StoreError

_POLL_S = 0.5


class Work[Result]:
    """A function that runs in a thread of its own, without collectives.

    Args:
        action: what to do.
        name: of the thread, for whoever looks at a stack.
    """

    def __init__(self, action: Callable[[], Result], *, name: str) -> None:
        self._action = action
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._result: Result | None = None
        self.seconds = 0.0
        # A daemon: a rank that fails elsewhere ends without waiting for a slow store.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def wait(self, seconds: float = 0.0) -> bool:
        """Whether the work has ended, well or not, after at most so many seconds."""
        return self._ended.wait(seconds)

    @property
    def error(self) -> BaseException | None:
        """What ended the work, None while it runs and when it ended well."""
        return self._error if self._ended.is_set() else None

    def result(self) -> Result:
        """What the function returned; raises what it raised. Waits for its end."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set by the thread before the event

    def _run(self) -> None:
        started = time.perf_counter()
        try:
            self._result = self._action()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever asks for the result
            self._error = error
        self.seconds = time.perf_counter() - started
        self._ended.set()


def most(values: Sequence[int], device: torch.device) -> list[int]:
    """Collective over the world: the largest value of each place."""
    tensor = torch.tensor(values, dtype=torch.int64, device=device)
    if dist.get_world_size() > 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return [int(value) for value in tensor.tolist()]


def all_ended(work: Work[object] | None, device: torch.device, *, wait_s: float = 0.0) -> bool:
    """Collective over the world: whether the work of every rank has ended.

    Args:
        work: this rank's, None when it has none.
        device: of this rank.
        wait_s: longest wait for this rank's work.

    Raises:
        MegapackError: work failed on some rank; on every rank alike.
    """
    running = work is not None and not work.wait(wait_s)
    failed = work is not None and work.error is not None
    anyone_runs, anyone_failed = most([running, failed], device)
    if anyone_failed:
        raise_everywhere(work.error if work is not None else None)
    return not anyone_runs


def wait_for_all(work: Work[object] | None, device: torch.device) -> None:
    """Collective over the world: return when the work of every rank has ended well.

    Args:
        work: this rank's, None when it has none.
        device: of this rank.

    Raises:
        MegapackError: work failed on some rank; on every rank alike.
    """
    while not all_ended(work, device, wait_s=_POLL_S):
        pass


def raise_everywhere(error: BaseException | None) -> None:
    """Collective over the world: raise this rank's error, or that of the first rank with one.

    Args:
        error: this rank's, None when it has none.
    """
    texts: list[tuple[str, str] | None] = [None] * dist.get_world_size()
    own = None if error is None else (type(error).__name__, str(error))
    dist.all_gather_object(texts, own)
    if error is not None:
        raise error
    for rank, found in enumerate(texts):
        if found is not None:
            raise _as_seen_elsewhere(rank, *found)


def _as_seen_elsewhere(rank: int, kind: str, text: str) -> MegapackError:
    if kind == StoreError.__name__:
        return StoreError(f"on rank {rank}: {text}")
    return RankError(f"rank {rank} failed with {kind}: {text}", rank=rank)
