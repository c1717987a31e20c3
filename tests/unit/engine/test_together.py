import threading

import pytest

from megapack.engine.together import Work
from megapack.errors import StoreError


def test_work_hands_over_its_result_and_says_when_it_has_ended():
    gate = threading.Event()
    work = Work(lambda: gate.wait(5) and 7, name="test")
    assert not work.wait(0.0)
    assert work.error is None
    gate.set()
    assert work.result() == 7
    assert work.wait()
    assert work.seconds > 0


def test_work_keeps_what_it_raised_until_it_is_asked():
    def fail():
        raise StoreError("disk full")

    work = Work(fail, name="test")
    assert work.wait(5.0)
    assert isinstance(work.error, StoreError)
    with pytest.raises(StoreError, match="disk full"):
        work.result()
