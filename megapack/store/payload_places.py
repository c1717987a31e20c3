"""Where the payload of a document stands: part, row group, record. 20 bytes a document in memory.

Ids are known by 64 bits of a hash. Two ids with one hash cost a read and nothing else, because a
record that is read says whose it is.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from megapack.store.manifest import Part
from megapack.store.payload_parts import GROUP_RECORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One row group of a part.

    Attributes:
        part: the part.
        first: its first record.
        count: number of records.
    """

    part: Part
    first: int
    count: int


class PayloadPlaces:
    """Finds the row groups that hold some documents."""

    def __init__(self, columns: Iterable[tuple[Part, pl.Series]]) -> None:
        """Take the ids.

        Args:
            columns: each part, and the ids of its records in order.
        """
        self._parts: list[Part] = []
        hashes, parts, groups = [], [], []
        for number, (part, ids) in enumerate(columns):
            self._parts.append(part)
            hashes.append(_hashes(ids))
            parts.append(np.full(ids.len(), number, dtype=np.int32))
            groups.append(np.arange(ids.len(), dtype=np.int32) // _group_records(part))
        joined = np.concatenate(hashes) if hashes else np.empty(0, dtype=np.uint64)
        order = np.argsort(joined, kind="stable")
        self._hashes = joined[order]
        self._part_of = np.concatenate(parts)[order] if parts else np.empty(0, dtype=np.int32)
        self._group_of = np.concatenate(groups)[order] if groups else np.empty(0, dtype=np.int32)

    def stretches(self, document_ids: Sequence[str]) -> Iterator[Stretch]:
        """Row groups that hold these documents, each once, in stored order."""
        wanted = _hashes(pl.Series(document_ids, dtype=pl.String))
        first = np.searchsorted(self._hashes, wanted, side="left")
        last = np.searchsorted(self._hashes, wanted, side="right")
        places = {
            (int(self._part_of[at]), int(self._group_of[at]))
            for begin, end in zip(first.tolist(), last.tolist(), strict=True)
            for at in range(begin, end)
        }
        for number, group in sorted(places):
            part = self._parts[number]
            size = _group_records(part)
            begin = group * size
            yield Stretch(part=part, first=begin, count=min(size, part.num_records - begin))


def _hashes(ids: pl.Series) -> npt.NDArray[np.uint64]:
    return ids.hash(seed=0).to_numpy()


def _group_records(part: Part) -> int:
    return max(1, part.counts[GROUP_RECORDS])
