"""`PackedDataset`: rows of one committed version, by the manifest and never by a listing.

Rows are fetched by whole row groups, ahead of their use and in the background, and kept as they are
stored, about 2.2 MB a million tokens, least recently used out first, up to 256 MB; a row is decoded
when it is asked for. The size of each part is checked against the manifest before it is first
read; `Verify.SHA256` also reads all of it.
"""

from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
import polars as pl

from megapack.errors import ConfigError
from megapack.records.packed_row import PackedRow
from megapack.store.committed import Committed
from megapack.store.location import Location, open_location
from megapack.store.manifest import Part, PartKind, Split
from megapack.store.order import Int64, RowOrder
from megapack.store.part_reader import PartReader, Verify
from megapack.store.row_table import RowTable
from megapack.store.schema import SchemaId
from megapack.store.token_planes import num_planes
from megapack.store.versions import read_version

KEPT_BYTES = 256 << 20
_FETCH_THREADS = 4
_GROUPS_AHEAD = 3
_INDEX_COLUMNS = ("num_real_tokens", "num_target_tokens", "cost", "lengths")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """What one fetch reads: `rows` rows of a part; `first` is a row number inside the split."""

    first: int
    part: Part
    offset: int
    rows: int


class PackedDataset:
    """One version of a packed dataset.

    Safe to use from several threads; to be opened anew in each process.

    Attributes:
        committed: the version.
        info: what its rows share.
    """

    def __init__(
        self, location: Location, committed: Committed, *, verify: Verify = Verify.SIZE
    ) -> None:
        self.committed = committed
        self.info = committed.manifest.packed_info()
        if committed.manifest.schema_id != SchemaId.PACKED_ROWS:
            raise ConfigError(
                f"{committed.uri} version {committed.version}: expected rows of schema "
                f"{SchemaId.PACKED_ROWS.value}, found {committed.manifest.schema_id!r}, which "
                "another version of megapack wrote. Pack the data again."
            )
        self._parts = PartReader(location, verify=verify)
        self._groups = {split: self._cut(split) for split in Split}
        self._firsts = {
            split: np.array([group.first for group in groups], dtype=np.int64)
            for split, groups in self._groups.items()
        }
        self._kept: OrderedDict[tuple[Split, int], Future[RowTable]] = OrderedDict()
        self._costs: dict[Split, Int64] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(_FETCH_THREADS, thread_name_prefix="megapack-reader")

    def close(self) -> None:
        """End the background fetches."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> "PackedDataset":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def num_rows(self, split: Split) -> int:
        """Rows of a split."""
        return sum(group.rows for group in self._groups[split])

    def index(self, split: Split) -> pl.DataFrame:
        """Lengths, counts and cost of every row of a split, without reading tokens.

        Returns:
            Columns `num_real_tokens`, `num_target_tokens` (Int32), `cost` (Int64), `lengths`
            (List(Int32)), one record a row, in stored order.
        """
        parts = self.committed.manifest.parts_of(PartKind.ROWS, split)
        frames = [self._parts.read(part, columns=_INDEX_COLUMNS) for part in parts]
        if not frames:
            raise ConfigError(self._no_rows(split))
        return pl.concat(frames)

    def costs(self, split: Split) -> Int64:
        """int64 [rows]: attention cost of every row of a split; read once and kept."""
        if split not in self._costs:
            self._costs[split] = self.index(split)["cost"].to_numpy()
        return self._costs[split]

    def order(self, split: Split, *, seed: int) -> RowOrder:
        """The endless seeded order over a split.

        Raises:
            ConfigError: the split has no rows.
        """
        if not self.num_rows(split):
            raise ConfigError(self._no_rows(split))
        return RowOrder(group_sizes=tuple(group.rows for group in self._groups[split]), seed=seed)

    def rows(self, split: Split, indices: npt.ArrayLike) -> Iterator[PackedRow]:
        """Rows by number inside the split, in the order asked for.

        Raises:
            ConfigError: a number is out of range.
            StoreError: a part is missing, or the store failed.
            DataError: a part or a row is damaged.
        """
        wanted, groups = self._locate(split, indices)
        turns = np.flatnonzero(np.diff(groups, prepend=-1))
        needed = groups[turns].tolist()
        ends = np.append(turns, wanted.size)[1:]
        for turn, (begin, end) in enumerate(zip(turns.tolist(), ends.tolist(), strict=True)):
            current = self._fetch(split, needed[turn])
            for group in needed[turn + 1 : turn + 1 + _GROUPS_AHEAD]:
                self._fetch(split, group)
            first = self._groups[split][needed[turn]].first
            for row in wanted[begin:end].tolist():
                yield current.result().row(row - first)

    def prefetch(self, split: Split, indices: npt.ArrayLike) -> None:
        """Begin to fetch the row groups of these rows in the background, soonest needed first.

        No more is fetched ahead than half of what is kept, so that nothing is pushed out unread.
        """
        limit = max(1, KEPT_BYTES // 2 // self._group_bytes)
        for group in list(dict.fromkeys(self._locate(split, indices)[1].tolist()))[:limit]:
            self._fetch(split, group)

    def _locate(self, split: Split, indices: npt.ArrayLike) -> tuple[Int64, Int64]:
        """Row numbers as an array, and the group of each."""
        wanted = np.asarray(indices, dtype=np.int64).reshape(-1)
        bad = wanted[(wanted < 0) | (wanted >= self.num_rows(split))]
        if bad.size:
            raise ConfigError(
                f"{self.committed.uri}: expected row numbers in [0, {self.num_rows(split)}) of "
                f"split {split.value!r}, found {int(bad[0])}."
            )
        groups = np.searchsorted(self._firsts[split], wanted, side="right") - 1
        return wanted, groups.astype(np.int64)

    def _cut(self, split: Split) -> tuple[_Group, ...]:
        groups, first = [], 0
        for part in self.committed.manifest.parts_of(PartKind.ROWS, split):
            for offset in range(0, part.num_records, self.info.group_rows):
                rows = min(self.info.group_rows, part.num_records - offset)
                groups.append(_Group(first=first, part=part, offset=offset, rows=rows))
                first += rows
        return tuple(groups)

    def _fetch(self, split: Split, group: int) -> Future[RowTable]:
        with self._lock:
            kept = self._kept.get((split, group))
            # A fetch that failed is tried again when the row is asked for again.
            if kept is None or (kept.done() and kept.exception() is not None):
                kept = self._pool.submit(self._load, split, group)
                self._kept[split, group] = kept
                while len(self._kept) > max(2, KEPT_BYTES // self._group_bytes):
                    self._kept.popitem(last=False)
            self._kept.move_to_end((split, group))
            return kept

    def _load(self, split: Split, group: int) -> RowTable:
        chosen = self._groups[split][group]
        frame = self._parts.read(chosen.part, rows=(chosen.offset, chosen.rows))
        where = f"{self.committed.uri}/{chosen.part.key} from row {chosen.offset}"
        return RowTable(frame, info=self.info, where=where)

    @property
    def _group_bytes(self) -> int:
        """Memory of a whole row group: 16 bits a token and its planes; the rest hardly counts."""
        positions = self.info.group_rows * self.info.row_length
        return positions * (16 + num_planes(self.info.vocab_size)) // 8 + 1

    def _no_rows(self, split: Split) -> str:
        return (
            f"{self.committed.uri} version {self.committed.version}: expected rows in split "
            f"{split.value!r}, found none. Raise validation_fraction, or add documents."
        )


def open_dataset(
    store: str | Location, version: int | None = None, *, verify: Verify = Verify.SIZE
) -> PackedDataset:
    """A version of a packed dataset, the newest one by default.

    Raises:
        ConfigError: there is no such version, or it is no packed dataset.
        StoreError: the store failed.
    """
    location = store if isinstance(store, Location) else open_location(store)
    return PackedDataset(location, read_version(location, version), verify=verify)
