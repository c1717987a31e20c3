"""Payloads of the rows that come next, read in the background so that steps do not wait.

The unit is the rows of one microbatch. So many units are read ahead of the one in use; the rest
of what is planned waits as references to rows. One consumer.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from megapack.engine.payload_fields import DocumentValues
from megapack.records.packed_row import PackedRow

Unit = Sequence[PackedRow]
Documents = Mapping[str, DocumentValues]
Read = Callable[[Unit], Documents]
UNITS_AHEAD = 2


@dataclass(slots=True, kw_only=True, eq=False)
class PayloadReader:
    """Hands out the values of documents, in the order in which their rows were planned.

    Attributes:
        read: reads the documents of rows; runs in the executor.
        executor: of one thread.
        ahead: units that are read ahead.
        waited_s: seconds that `take` has waited since `take_waited_s`.
    """

    read: Read
    executor: Executor
    ahead: int = UNITS_AHEAD
    waited_s: float = 0.0
    _waiting: deque[tuple[int, Unit]] = field(default_factory=deque)
    _running: deque[tuple[int, Unit, Future[Documents]]] = field(default_factory=deque)
    _here: dict[str, DocumentValues] = field(default_factory=dict)

    def plan(self, step: int, units: Iterable[Unit]) -> None:
        """Announce the rows of a step.

        Args:
            step: key of the step; rises from step to step.
            units: rows of each microbatch, in order.
        """
        self._waiting.extend((step, unit) for unit in units)
        self._go_on()

    def begin(self, step: int) -> None:
        """Forget what was planned for earlier steps and not taken."""
        self._here.clear()
        while self._waiting and self._waiting[0][0] < step:
            self._waiting.popleft()
        while self._running and self._running[0][0] < step:
            self._running.popleft()[-1].cancel()
        self._go_on()

    def take(self, row: PackedRow) -> Documents:
        """Values of all documents of a microbatch's row; each is handed out once for each unit.

        Raises:
            DataError: a payload is missing, damaged, or of other positions.
            StoreError: the store failed.
        """
        wanted = dict.fromkeys(row.document_ids)
        began = time.perf_counter()
        while self._running and self._is_planned(wanted.keys() - self._here.keys()):
            self._here.update(self._running.popleft()[-1].result())
            self._go_on()
        if not wanted.keys() <= self._here.keys():
            # Rows that are run again, to look for the cause of a fault: what is read ahead stays.
            self._here.update(self.executor.submit(self.read, (row,)).result())
        self.waited_s += time.perf_counter() - began
        return {one: self._here.pop(one) for one in wanted}

    def take_waited_s(self) -> float:
        """Seconds of waiting since the last call."""
        waited, self.waited_s = self.waited_s, 0.0
        return waited

    def _go_on(self) -> None:
        while self._waiting and len(self._running) < self.ahead:
            step, unit = self._waiting.popleft()
            self._running.append((step, unit, self.executor.submit(self.read, unit)))

    def _is_planned(self, document_ids: Set[str]) -> bool:
        """Whether a unit that is read, or waits, holds one of these documents."""
        units = [unit for _, unit, _ in self._running] + [unit for _, unit in self._waiting]
        return any(not document_ids.isdisjoint(row.document_ids) for unit in units for row in unit)
