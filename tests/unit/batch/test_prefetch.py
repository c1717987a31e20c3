"""Rows made ahead by a thread."""

import gc
import itertools
import threading

import pytest

from megapack.batch.prefetch import Prefetched


def _threads():
    gc.collect()
    return [thread for thread in threading.enumerate() if thread.name == "megapack-prefetch"]


def test_items_come_in_order_and_the_thread_ends_with_them():
    assert list(Prefetched(iter(range(50)), 3)) == list(range(50))
    assert not _threads()


def test_no_more_is_made_ahead_than_was_asked_for():
    made, enough = [], threading.Event()

    def source():
        for number in itertools.count():
            made.append(number)
            if number == 5:
                enough.set()
            yield number

    rows = Prefetched(source(), 2)
    assert [next(rows) for _ in range(3)] == [0, 1, 2]
    # Three were taken, two wait, and one is in the thread's hands.
    assert enough.wait(5)
    rows.close()
    assert made == [0, 1, 2, 3, 4, 5]
    assert not _threads()
    with pytest.raises(StopIteration):
        next(rows)


def test_an_error_comes_where_its_row_would_have_come():
    def source():
        yield 1
        raise ValueError("bad row")

    rows = Prefetched(source(), 2)
    assert next(rows) == 1
    with pytest.raises(ValueError, match="bad row"):
        next(rows)
    with pytest.raises(StopIteration):
        next(rows)
    assert not _threads()


def test_an_iterator_that_is_forgotten_leaves_no_thread():
    rows = Prefetched(itertools.count(), 2)
    next(rows)
    assert len(_threads()) == 1
    del rows
    assert not _threads()
