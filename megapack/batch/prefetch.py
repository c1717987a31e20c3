"""Rows made ahead by a thread, in order, at most so many."""

import threading
import weakref
from collections.abc import Iterator
from queue import Empty, Queue
from typing import Any, Self, cast


class Prefetched[T]:
    """Iterates over `source` in a thread of its own, `ahead` items before they are asked for.

    What `source` raises is raised where the item would have come. Closing, and being forgotten,
    stops the thread; it ends after the item that it is at.

    Args:
        source: is touched by the thread only.
        ahead: items that may wait; the thread holds at most one more.
    """

    def __init__(self, source: Iterator[T], ahead: int) -> None:
        self._queue: Queue[tuple[T | None, BaseException | None]] = Queue(maxsize=ahead)
        self._ended = False
        stop = threading.Event()
        thread = threading.Thread(
            target=_run, args=(source, self._queue, stop), name="megapack-prefetch", daemon=True
        )
        self._close = weakref.finalize(self, _stop, self._queue, stop, thread)
        thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._ended or not self._close.alive:
            raise StopIteration
        item, error = self._queue.get()
        if error is not None:
            self._ended = True
            self.close()
            raise error
        return cast("T", item)

    def close(self) -> None:
        """Stop the thread and wait for its end."""
        self._close()


def _run[T](
    source: Iterator[T],
    queue: "Queue[tuple[T | None, BaseException | None]]",
    stop: threading.Event,
) -> None:
    while not stop.is_set():
        try:
            queue.put((next(source), None))
        except BaseException as error:  # noqa: BLE001 - raised again by the consumer
            queue.put((None, error))
            return


def _stop(queue: "Queue[Any]", stop: threading.Event, thread: threading.Thread) -> None:
    """Room in the queue lets the thread see that it shall stop."""
    stop.set()
    if thread is threading.current_thread():
        return
    while thread.is_alive():
        try:
            queue.get_nowait()
        except Empty:
            thread.join(0.005)
