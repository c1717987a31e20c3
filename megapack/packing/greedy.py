"""Rows of a multimodal stream, packed greedily as samples are drawn; no sample is lost.

The rule, for one row:

1. Samples that have to open it come first, in their order, as far as they fit together.
2. Each mandatory group that is not in the row yet gives one sample: the one of its that waits
   longest, else a fresh one. One that does not fit opens the next row.
3. While the row holds fewer than `prefer_buffer_before` tokens, or nothing, the sample that waits
   longest is tried; else a group is drawn and gives a fresh one.
4. What fits is taken. A fresh sample that does not fit waits, as long as fewer than `max_buffered`
   wait; otherwise the row is handed out and the sample opens the next one. So does a sample that
   waited and does not fit.
5. A row that holds `expected_tokens` is handed out.
6. At the end of all groups, those that wait are placed, oldest first, and the last row is handed
   out as it is.

Nobody waits without end: a sample that waited through a whole row without being tried opens the
next one, or one soon after where mandatory samples take turns; and while openers are left over,
nothing is drawn that could not wait. At most two samples and one of each mandatory group have to
open a row, and each row takes at least the first.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from megapack.packing.group_draw import GroupDraw
from megapack.packing.row_limits import RowLimits
from megapack.records.multimodal_sample import SampleSize
from megapack.records.rejects import RejectReason


class CloseReason(StrEnum):
    """Why a row was handed out.

    EXPECTED: it reached `expected_tokens`. NO_ROOM: a sample did not fit and could not wait.
    TURN: samples that have to open a row were left over, and no further one could wait. END: the
    groups ended.
    """

    EXPECTED = "expected"
    NO_ROOM = "no_room"
    TURN = "turn"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackItem[T]:
    """A sample as the packer sees it.

    Attributes:
        group: its group.
        size: what it takes of a row; alone it fits.
        content: what is packed.
    """

    group: str
    size: SampleSize
    content: T


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClosedRow[T]:
    """A row that was handed out.

    Attributes:
        items: in order; at least one.
        size: their sum.
        reason: why it was handed out.
        cap: the budget that closed it; NO_ROOM only, else None.
        deferred: samples that did not fit it, by the budget they exceeded.
        mandatory_missed: mandatory groups whose sample did not fit it.
        most_waiting: samples that waited at once while it was filled.
    """

    items: tuple[PackItem[T], ...]
    size: SampleSize
    reason: CloseReason
    cap: RejectReason | None
    deferred: Mapping[RejectReason, int]
    mandatory_missed: int
    most_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held[T]:
    """Samples between rows.

    Attributes:
        openers: those that have to open the next row, in order.
        waiting: those that wait, oldest first.
    """

    openers: tuple[PackItem[T], ...] = ()
    waiting: tuple[PackItem[T], ...] = ()


class _OpenRow[T]:
    def __init__(self, limits: RowLimits) -> None:
        self._limits = limits
        self.items: list[PackItem[T]] = []
        self.size = SampleSize()
        self.deferred: Counter[RejectReason] = Counter()
        self.cap: RejectReason | None = None
        self.mandatory_missed = 0
        self.most_waiting = 0
        self.tried_waiting = False

    def offer(self, item: PackItem[T]) -> bool:
        """Take an item if it fits; otherwise count the budget that it exceeds."""
        grown = self.size.plus(item.size)
        exceeded = self._limits.exceeded(grown)
        if exceeded is None:
            self.items.append(item)
            self.size = grown
            return True
        self.deferred[exceeded] += 1
        self.cap = exceeded
        return False

    def has(self, group: str) -> bool:
        return any(item.group == group for item in self.items)

    def close(self, reason: CloseReason) -> ClosedRow[T]:
        return ClosedRow(
            items=tuple(self.items),
            size=self.size,
            reason=reason,
            cap=self.cap if reason is CloseReason.NO_ROOM else None,
            deferred=dict(self.deferred),
            mandatory_missed=self.mandatory_missed,
            most_waiting=self.most_waiting,
        )


class GreedyPacker[T]:
    """Packs what `take` gives.

    Args:
        limits: budgets of a row.
        draw: chooses groups.
        take: next sample of a group, alone within the budgets of a row, or None at the group's end.
        mandatory: groups that each row begins with, in order.
        held: samples between rows, when it goes on from a state.
    """

    def __init__(
        self,
        limits: RowLimits,
        draw: GroupDraw,
        take: Callable[[str], PackItem[T] | None],
        *,
        mandatory: Iterable[str] = (),
        held: Held[T] | None = None,
    ) -> None:
        self._limits = limits
        self._draw = draw
        self._source = take
        self._mandatory = tuple(mandatory)
        held = Held() if held is None else held
        self._openers = deque(held.openers)
        self._waiting = deque(held.waiting)

    def held(self) -> Held[T]:
        """Samples between rows."""
        return Held(openers=tuple(self._openers), waiting=tuple(self._waiting))

    def next_row(self) -> ClosedRow[T] | None:
        """The next row, or None when the groups ended and nothing waits."""
        row: _OpenRow[T] = _OpenRow(self._limits)
        oldest = self._waiting[0] if self._waiting else None
        self._open(row)
        left_over = bool(self._openers)
        reason = self._fill(row)
        if not row.items:
            return None
        passed_over = oldest is not None and not row.tried_waiting and oldest in self._waiting
        if passed_over and (not left_over or self._all_of_mandatory()):
            self._openers.append(self._waiting.popleft())
        return row.close(reason)

    def _all_of_mandatory(self) -> bool:
        """Whether all that have to open the next row do so for their group, not for their turn."""
        groups = {item.group for item in self._openers}
        return len(self._openers) == len(groups.intersection(self._mandatory))

    def _open(self, row: _OpenRow[T]) -> None:
        """Openers that fit, then a sample of each mandatory group that is not in the row yet."""
        self._openers = deque(item for item in self._openers if not row.offer(item))
        for group in self._mandatory:
            if row.has(group):
                continue
            if not any(item.group == group for item in self._openers):
                item = self._first_of(group)
                if item is None or row.offer(item):
                    continue
                self._openers.append(item)
            row.mandatory_missed += 1

    def _fill(self, row: _OpenRow[T]) -> CloseReason:
        limits = self._limits
        while row.size.tokens < limits.expected_tokens:
            row.most_waiting = max(row.most_waiting, len(self._waiting))
            if self._waiting_first(row):
                row.tried_waiting = True
                if row.offer(self._waiting[0]):
                    self._waiting.popleft()
                    continue
                if self._all_of_mandatory():
                    self._openers.append(self._waiting.popleft())
                return CloseReason.NO_ROOM
            full = len(self._waiting) >= limits.max_buffered
            if self._openers and full:
                return CloseReason.END if self._draw.all_ended else CloseReason.TURN
            item = self._fresh()
            if item is None and not self._waiting:
                return CloseReason.END
            if item is None or row.offer(item):
                continue
            if full:
                self._openers.append(item)
                return CloseReason.NO_ROOM
            self._waiting.append(item)
        return CloseReason.EXPECTED

    def _waiting_first(self, row: _OpenRow[T]) -> bool:
        """Whether a sample that waits comes before a fresh one."""
        if not self._waiting:
            return False
        below = row.size.tokens < self._limits.prefer_buffer_before or not row.items
        return below or self._draw.all_ended

    def _first_of(self, group: str) -> PackItem[T] | None:
        """The sample of a group that waits longest, else a fresh one, else None."""
        for number, item in enumerate(self._waiting):
            if item.group == group:
                del self._waiting[number]
                return item
        return self._take(group)

    def _fresh(self) -> PackItem[T] | None:
        """A sample of a drawn group, or None when all have ended."""
        while (group := self._draw.draw()) is not None:
            if (item := self._take(group)) is not None:
                return item
        return None

    def _take(self, group: str) -> PackItem[T] | None:
        """The next sample of a group; one without any leaves the draw."""
        if self._draw.has_ended(group):
            return None
        item = self._source(group)
        if item is None:
            self._draw.end(group)
        return item
