"""Where the payload of a document stands: part and row group. 16 bytes a document in memory.

Ids are known by 64 bits of a hash. Two ids with one hash cost a read and nothing else, because a
record that is read says whose it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from megapack.errors import DataError
from megapack.store.manifest import Part
from megapack.store.payload_parts import GROUP_RECORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Whole row groups of a part, one after another.

    Attributes:
        part: the part.
        first: its first record.
        count: number of records.
    """

    part: Part
    first: int
    count: int


class DocumentHashes:
    """Record numbers of documents, by hash of the id."""

    def __init__(self, document_ids: pl.Series) -> None:
        """Take the ids of all records, in stored order."""
        hashes = _hashes(document_ids)
        self._records = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._records]

    def __len__(self) -> int:
        return self._hashes.size

    def records(self, document_ids: Sequence[str]) -> npt.NDArray[np.int64]:
        """int64, ascending: records that may be of these documents, and all that are."""
        wanted = _hashes(pl.Series(document_ids, dtype=pl.String))
        first = np.searchsorted(self._hashes, wanted, side="left").tolist()
        last = np.searchsorted(self._hashes, wanted, side="right").tolist()
        found = [self._records[begin:end] for begin, end in zip(first, last, strict=True)]
        return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *found]))


class PartPlaces:
    """Row groups of the parts of one kind, by number of the record."""

    def __init__(self, parts: Sequence[Part], *, num_records: int) -> None:
        """Take the parts in stored order.

        Raises:
            DataError: they do not hold as many records as the index.
        """
        self._parts = tuple(parts)
        self._ends = np.cumsum([part.num_records for part in parts], dtype=np.int64)
        found = int(self._ends[-1]) if parts else 0
        if found != num_records:
            raise DataError(
                f"payload parts: expected {num_records} records, as many as the index has, found "
                f"{found}. Extract the payload anew."
            )

    def stretches(self, records: npt.NDArray[np.int64]) -> Iterator[Stretch]:
        """Row groups that hold these records, each once, in stored order.

        Args:
            records: int64, ascending.
        """
        numbers = np.searchsorted(self._ends, records, side="right")
        for number in np.unique(numbers).tolist():
            part = self._parts[number]
            inside = records[numbers == number] - (int(self._ends[number]) - part.num_records)
            size = max(1, part.counts[GROUP_RECORDS])
            groups = np.unique(inside // size)
            breaks = np.flatnonzero(np.diff(groups) > 1) + 1
            for run in np.split(groups, breaks):
                first, last = int(run[0]) * size, (int(run[-1]) + 1) * size
                yield Stretch(part=part, first=first, count=min(last, part.num_records) - first)


def _hashes(ids: pl.Series) -> npt.NDArray[np.uint64]:
    return ids.hash(seed=0).to_numpy()
