"""Reading ahead: in planned order, bounded, once for each unit, and right in any order of use."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from megapack.engine.payload_reader import UNITS_AHEAD, PayloadReader
from megapack.errors import DataError
from tests.support.tiny_dataset import make_rows

ROWS = make_rows(6, seed=4)


class Store:
    """Answers with the ids; notes which rows were read."""

    def __init__(self):
        self.read: list[tuple[str, ...]] = []
        self.gate = Event()
        self.gate.set()

    def __call__(self, unit):
        self.gate.wait(10)
        self.read.append(tuple(row.document_ids[0] for row in unit))
        return {one: {"id": one} for row in unit for one in row.document_ids}


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def first(*numbers):
    return tuple(ROWS[number].document_ids[0] for number in numbers)


def settled(executor):
    executor.submit(lambda: None).result()


def test_units_are_read_ahead_of_their_use_and_no_further(executor):
    store = Store()
    reader = PayloadReader(read=store, executor=executor)
    reader.plan(4, [[row] for row in ROWS[:3]])
    reader.plan(8, [[row] for row in ROWS[3:]])
    settled(executor)
    assert store.read == [first(number) for number in range(UNITS_AHEAD)]
    reader.begin(4)
    for number, row in enumerate(ROWS[:3]):
        found = reader.take(row)
        assert found == {one: {"id": one} for one in row.document_ids}
        settled(executor)
        assert len(store.read) == number + 1 + UNITS_AHEAD
    reader.begin(8)
    for row in ROWS[3:]:
        reader.take(row)
    assert store.read == [first(number) for number in range(6)]
    assert not reader._here


def test_waiting_is_measured_and_handed_out_once(executor):
    store = Store()
    store.gate.clear()
    reader = PayloadReader(read=store, executor=executor)
    reader.plan(1, [ROWS[:1]])
    executor_of_gate = ThreadPoolExecutor(1)
    executor_of_gate.submit(lambda: (Event().wait(0.05), store.gate.set()))
    reader.take(ROWS[0])
    executor_of_gate.shutdown()
    assert reader.take_waited_s() > 0.02
    assert reader.take_waited_s() == 0.0


def test_what_is_taken_in_another_order_twice_or_unplanned_is_there(executor):
    store = Store()
    reader = PayloadReader(read=store, executor=executor)
    reader.plan(1, [[row] for row in ROWS[:4]])
    reader.begin(1)
    for number in (2, 0, 3, 1, 1, 5):
        assert reader.take(ROWS[number]).keys() == set(ROWS[number].document_ids)
    assert store.read == [first(number) for number in (0, 1, 2, 3, 1, 5)]


def test_an_unplanned_row_leaves_what_is_read_ahead_alone(executor):
    store = Store()
    reader = PayloadReader(read=store, executor=executor)
    reader.plan(2, [[row] for row in ROWS[:4]])
    settled(executor)
    reader.take(ROWS[5])
    settled(executor)
    assert store.read == [*(first(number) for number in range(UNITS_AHEAD)), first(5)]
    reader.begin(2)
    for row in ROWS[:4]:
        reader.take(row)
    assert store.read.count(first(0)) == 1


def test_a_step_that_was_skipped_is_forgotten(executor):
    store = Store()
    reader = PayloadReader(read=store, executor=executor)
    reader.plan(1, [[row] for row in ROWS[:4]])
    reader.plan(2, [ROWS[4:5]])
    reader.begin(2)
    reader.take(ROWS[4])
    assert store.read[-1] == first(4)
    assert first(3) not in store.read
    assert not reader._here


def test_what_the_reading_raises_is_raised_where_it_is_taken(executor):
    def fail(unit):
        raise DataError("damaged")

    reader = PayloadReader(read=fail, executor=executor)
    reader.plan(1, [ROWS[:1]])
    with pytest.raises(DataError, match="damaged"):
        reader.take(ROWS[0])
