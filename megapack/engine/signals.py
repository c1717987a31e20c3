"""SIGTERM and SIGINT ask a rank to stop: it ends its step, saves, and is gone within a bound.

The request is noticed even while the main thread stands in a collective, because the kernel's
signal reaches a thread through a file descriptor. That thread ends the process when the bound has
passed, or at once when another rank of this node has died: then the signal is the agent's way to
clean up, and there is nobody to save with.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from megapack.steps.launch.process_tree import children

STOPPED_EXIT_CODE = 75
"""Exit code of a rank that stopped because it was told to: EX_TEMPFAIL, try again later."""

_STOPS = (signal.SIGTERM, signal.SIGINT)
_LOOK_EVERY_S = 0.2


class StopRequest:
    """Whether this process was told to stop, and since when it should be gone.

    Args:
        within_s: seconds from the request to the end of the process.
        end: ends the process; called from a thread with the reason.
    """

    def __init__(self, *, within_s: float, end: Callable[[str], None]) -> None:
        self._within_s = within_s
        self._end = end
        self._asked = threading.Event()
        self._left = threading.Event()

    @property
    def asked(self) -> bool:
        """True from the first signal on."""
        return self._asked.is_set()

    def leave(self) -> None:
        """The process no longer needs to be watched."""
        self._left.set()

    def watch(self, signals: socket.socket) -> None:
        """Body of the thread: wait for a signal, then for the end of the process.

        Args:
            signals: readable end of the descriptor that the interpreter writes signals to; closed
                here. The thread ends when its other end is closed.
        """
        with signals:
            while received := signals.recv(1):
                if received[0] in _STOPS:
                    break
        if not received:
            return
        self._asked.set()
        deadline = time.monotonic() + self._within_s
        while not self._left.wait(min(_LOOK_EVERY_S, max(0.0, deadline - time.monotonic()))):
            if a_peer_died():
                self._end("another rank of this node has ended")
                return
            if time.monotonic() >= deadline:
                self._end(
                    f"expected to have saved and ended within {self._within_s:g} s of the request "
                    "to stop (TrainSettings.stop_within_s); it did not. The newest committed "
                    "checkpoint stands"
                )
                return


@contextmanager
def stop_requests(*, within_s: float, end: Callable[[str], None]) -> Iterator[StopRequest]:
    """Take SIGTERM and SIGINT as requests to stop inside the block; main thread only.

    Args:
        within_s: seconds from the request to the end of the process.
        end: ends the process when it is late; called from a thread with the reason.
    """
    request = StopRequest(within_s=within_s, end=end)
    readable, writable = socket.socketpair()
    writable.settimeout(0)
    before = signal.set_wakeup_fd(writable.fileno(), warn_on_full_buffer=False)
    # A handler must be there; what it would do, the thread does.
    handlers = [(number, signal.signal(number, _nothing)) for number in _STOPS]
    watcher = threading.Thread(
        target=request.watch, args=(readable,), name="stop-request", daemon=True
    )
    watcher.start()
    try:
        yield request
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers:
            signal.signal(number, handler)
        writable.close()
        request.leave()
        watcher.join()


def a_peer_died() -> bool:
    """Whether fewer ranks run on this node than torchrun started; False without torchrun."""
    started = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return bool(started) and len(children(os.getppid())) < started


def _nothing(*_: object) -> None:
    """The signal has been written to the descriptor."""
