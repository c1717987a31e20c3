"""The rows of one data parallel rank, epoch after epoch, with a resume point.

Ranks take turns: of every `world` rows of the seeded order each rank gets one, so that together
they see every row of an epoch exactly once, and all of them get the same number of rows. Where
`world` does not divide the rows of an epoch, the last turn is filled up with empty rows or left
out; `Share` says how many. The resume point counts rows over all ranks, so a run may go on with
another number of ranks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypedDict

from megapack.errors import ConfigError
from megapack.records.packed_row import PackedRow
from megapack.store.order import Int64, RowOrder

_TURNS_AT_ONCE = 256


class Remainder(StrEnum):
    """What happens to the last rows of an epoch when there are fewer than ranks."""

    FILL = "fill"
    """Ranks without a row get an empty one: no document, no loss."""
    DROP = "drop"
    """Nobody gets them in this epoch."""


class Reading(TypedDict, total=False):
    """How far and in which order to read.

    Attributes:
        seed: seed of the row order; 0 by default.
        epochs: stop after that many, counted from the first; None never stops; 1 by default.
        consumed: rows consumed so far over all ranks and epochs; 0 by default.
        remainder: what happens at an epoch's end; `Remainder.FILL` by default.
    """

    seed: int
    epochs: int | None
    consumed: int
    remainder: Remainder | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one epoch is to each rank.

    Attributes:
        rows_per_rank: rows that every rank gets, empty ones included.
        filler_rows: empty rows over all ranks.
        dropped_rows: rows that no rank gets.
    """

    rows_per_rank: int
    filler_rows: int = 0
    dropped_rows: int = 0


def share_of(num_rows: int, world: int, remainder: Remainder) -> Share:
    """How an epoch is shared.

    >>> share_of(10, 4, Remainder.FILL)
    Share(rows_per_rank=3, filler_rows=2, dropped_rows=0)
    >>> share_of(10, 4, Remainder.DROP)
    Share(rows_per_rank=2, filler_rows=0, dropped_rows=2)

    Args:
        num_rows: rows of the epoch, or what is left of it.
        world: data parallel ranks.
        remainder: what happens to the last rows.
    """
    whole, left = divmod(num_rows, world)
    if remainder is Remainder.DROP:
        return Share(rows_per_rank=whole, dropped_rows=left)
    return Share(rows_per_rank=whole + (left > 0), filler_rows=(world - left) % world)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """Who reads what.

    Attributes:
        rank: data parallel rank, in [0, world).
        world: data parallel ranks.
        epochs: where to stop, None for never.
        remainder: what happens at an epoch's end.
    """

    rank: int
    world: int
    epochs: int | None
    remainder: Remainder

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigError(
                f"expected 0 <= rank < world, found rank {self.rank} of world {self.world}. rank "
                "and world are those of data parallelism, context parallel ranks not counted."
            )

    def turns(self, order: RowOrder, consumed: int) -> Iterator[tuple[Int64, int, int]]:
        """Stretches of turns, from a resume point on.

        Yields:
            Row numbers of this rank, int64 [turns or turns - 1]; the number of turns; rows
            consumed over all ranks before the stretch.
        """
        while self.epochs is None or consumed < self.epochs * order.num_rows:
            left = order.num_rows - consumed % order.num_rows
            if left < self.world and self.remainder is Remainder.DROP:
                consumed += left
                continue
            count = min(left, self.world * _TURNS_AT_ONCE)
            if self.remainder is Remainder.DROP:
                count -= count % self.world
            rows = order.rows_at(consumed, count)
            yield rows[self.rank :: self.world], -(-count // self.world), consumed
            consumed += count


class RowReader(Protocol):
    """Reads rows by number, in the order asked for."""

    def __call__(self, numbers: Int64) -> Iterator[PackedRow]:
        """Rows by number."""


class RankRows[Row](Iterator[Row]):
    """Rows of one rank.

    Attributes:
        consumed: rows consumed over all ranks and epochs when the row that was handed out last is
            done with: the whole resume state.
    """

    def __init__(
        self,
        plan: RankPlan,
        *,
        order: RowOrder,
        read: RowReader,
        filler: PackedRow,
        view: Callable[[PackedRow], Row],
        consumed: int = 0,
    ) -> None:
        """Begin at a resume point.

        Args:
            plan: who reads what.
            order: the endless order over the split.
            read: reads rows by number.
            filler: the empty row.
            view: what is handed out for a row.
            consumed: the resume point.

        Raises:
            ConfigError: the resume point is negative.
        """
        if consumed < 0:
            raise ConfigError(f"expected consumed >= 0, found {consumed}.")
        self.consumed = consumed
        self._plan = plan
        self._total = order.num_rows
        self._rows = self._walk(plan.turns(order, consumed), read, filler=filler, view=view)

    def __iter__(self) -> "RankRows[Row]":
        return self

    def __next__(self) -> Row:
        return next(self._rows)

    def _walk(
        self,
        stretches: Iterator[tuple[Int64, int, int]],
        read: RowReader,
        *,
        filler: PackedRow,
        view: Callable[[PackedRow], Row],
    ) -> Iterator[Row]:
        for numbers, turns, before in stretches:
            rows = read(numbers)
            end = (before // self._total + 1) * self._total
            for turn in range(1, turns + 1):
                row = view(next(rows, filler))
                after = min(before + turn * self._plan.world, end)
                dropped = self._plan.remainder is Remainder.DROP and end - after < self._plan.world
                self.consumed = end if dropped else after
                yield row
