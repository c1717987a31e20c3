import os
import signal
import threading

import pytest

from megapack.engine import signals
from megapack.engine.signals import stop_requests


def wait_until(condition, *, limit_s=5.0):
    for _ in range(int(limit_s / 0.01)):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("did not happen in time")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_to_stop_and_interrupts_nothing(number):
    late = []
    with stop_requests(within_s=60.0, end=late.append) as request:
        assert not request.asked
        os.kill(os.getpid(), number)
        wait_until(lambda: request.asked)
    assert late == []


def test_other_signals_ask_for_nothing():
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with stop_requests(within_s=60.0, end=lambda _: None) as request:
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: request.asked)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_process_that_is_late_is_ended_though_its_main_thread_does_nothing():
    late = []
    with stop_requests(within_s=0.2, end=late.append):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: late)
    assert "expected to have saved and ended within 0.2 s" in late[0]


def test_a_rank_whose_peer_died_is_ended_at_once(monkeypatch):
    # More ranks than this process's parent has children.
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "10000")
    late = []
    with stop_requests(within_s=60.0, end=late.append):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: late)
    assert late[0] == "another rank of this node has ended"


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with stop_requests(within_s=1.0, end=lambda _: None):
        assert signal.getsignal(signal.SIGTERM) is signals._nothing
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1
