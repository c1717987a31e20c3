"""Signals of a stack command: they raise `Interrupted`, so that clean-up code runs."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked this command to stop.

    Like KeyboardInterrupt it is no Exception, so that nothing takes it for an ordinary failure.
    """

    def __init__(self, signal_name: str) -> None:
        super().__init__(f"stopped by {signal_name}")


def catch() -> None:
    """Turn SIGINT, SIGTERM and SIGHUP into `Interrupted`, also where SIGINT was ignored."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        raise Interrupted(signal.Signals(number).name)

    for sign in _SIGNALS:
        signal.signal(sign, stop)


@contextmanager
def ignored() -> Iterator[None]:
    """Let a clean-up end although the user presses Ctrl-C again; it is bounded anyway."""
    before = {sign: signal.signal(sign, signal.SIG_IGN) for sign in _SIGNALS}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
