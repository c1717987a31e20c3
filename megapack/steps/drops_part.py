"""Drops as parts of a version: every left-out record with its place and reason.

Parts are cut at a fixed number of drops, so that any number of them passes through a bounded
amount of memory and equal drops make equal parts.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import polars as pl

from megapack.records.drops import Drop, DropLedger, DropReason
from megapack.store.document_frames import drops_to_frame
from megapack.store.location import Location
from megapack.store.manifest import Part, PartKind
from megapack.store.schema import SchemaId, file_metadata
from megapack.store.writer import PartForm, write_part

PART_DROPS = 1 << 16
_FORM = PartForm(
    schema=SchemaId.DROPS,
    kind=PartKind.DROPS,
    metadata=file_metadata(SchemaId.DROPS),
    group_records=PART_DROPS,
)


class DropSink:
    """Writes drops as they come, and counts them."""

    def __init__(self, location: Location, *, part_drops: int = PART_DROPS) -> None:
        """Begin.

        Args:
            location: the store.
            part_drops: drops of one part.
        """
        self._location = location
        self._part_drops = part_drops
        self._drops: list[Drop] = []
        self._frames: list[pl.DataFrame] = []
        self._waiting = 0
        self._parts: list[Part] = []
        self._documents: Counter[DropReason] = Counter()
        self._tokens: Counter[DropReason] = Counter()

    @property
    def total(self) -> int:
        """Drops taken so far."""
        return self._documents.total()

    @property
    def ledger(self) -> DropLedger:
        """Counts so far."""
        return DropLedger(documents=self._documents, tokens=self._tokens)

    def add(self, drop: Drop) -> None:
        """Take one drop.

        Raises:
            StoreError: a part was due and could not be written.
        """
        self._drops.append(drop)
        self._count(drop.reason, 1, drop.tokens)
        self._flush_full()

    def add_frame(self, frame: pl.DataFrame) -> None:
        """Take drops as a frame of `megapack.drops/1`. Raises as `add` does."""
        self._settle()
        self._frames.append(frame)
        counts = frame.group_by("reason").agg(pl.len(), pl.col("tokens").sum())
        for reason, documents, tokens in counts.iter_rows():
            self._count(DropReason(reason), documents, tokens)
        self._flush_full()

    def close(self) -> list[Part]:
        """Write what is left; the parts, in the order of the drops."""
        self._settle()
        left = pl.concat(self._frames) if self._frames else None
        if left is not None and left.height:
            self._parts.append(write_part(self._location, left, form=_FORM))
        self._frames = []
        return self._parts

    def _count(self, reason: DropReason, documents: int, tokens: int) -> None:
        self._documents[reason] += documents
        self._tokens[reason] += tokens
        self._waiting += documents

    def _settle(self) -> None:
        """Turn single drops into a frame."""
        if self._drops:
            self._frames.append(drops_to_frame(self._drops))
            self._drops = []

    def _flush_full(self) -> None:
        """Write full parts, when there are any."""
        if self._waiting < self._part_drops:
            return
        self._settle()
        left = pl.concat(self._frames)
        while left.height >= self._part_drops:
            full, left = left.head(self._part_drops), left.slice(self._part_drops)
            self._parts.append(write_part(self._location, full, form=_FORM))
        self._frames, self._waiting = [left], left.height


def write_drops(location: Location, drops: Sequence[Drop]) -> list[Part]:
    """Write drops, in their order; no part when there are none.

    Raises:
        StoreError: the store failed.
    """
    return write_frames(location, [drops_to_frame(drops)])[0]


def write_frames(
    location: Location, frames: Iterable[pl.DataFrame]
) -> tuple[list[Part], DropLedger]:
    """Write frames of drops, in their order: the parts, and what they count.

    Raises:
        StoreError: the store failed.
    """
    sink = DropSink(location)
    for frame in frames:
        sink.add_frame(frame)
    return sink.close(), sink.ledger
