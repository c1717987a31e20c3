"""Where `store` readers and `batch` meet: the rows of steps and of evaluations, by rank."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from megapack.errors import MegapackError
from megapack.layout.granularity import Granularity
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from megapack.records.refs import DatasetRef
from megapack.store.location import open_location
from megapack.store.manifest import PartKind, Split
from megapack.store.part_reader import PartReader
from megapack.store.pins import HeldPin
from megapack.store.reader import PackedDataset
from megapack.store.step_stream import DpSlice, RankStep, rank_steps
from megapack.store.versions import read_version


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSource:
    """Rows of a committed dataset as a run consumes them.

    Attributes:
        dataset: the committed version.
        pin: keeps the version while the run lasts; None on ranks that leave it to another.
    """

    dataset: PackedDataset
    pin: HeldPin | None = None

    @classmethod
    def open(cls, ref: DatasetRef, *, run: str | None = None) -> Self:
        """Open the dataset version that a reference names, with the content it names.

        Args:
            ref: the dataset.
            run: name of the run that pins the version, given on one rank of a run.

        Raises:
            ConfigError: there is no such version.
            StoreError: the store failed, or holds another content.
        """
        location = open_location(ref.uri)
        # Pinned before it is read, so that what was read stays.
        pin = None if run is None else HeldPin(location, ref.version, run=run)
        try:
            committed = read_version(location, ref.version)
            committed.check_ref(ref)
            return cls(dataset=PackedDataset(location, committed), pin=pin)
        except MegapackError:
            if pin is not None:
                pin.close()
            raise

    def close(self) -> None:
        """End background fetches and let the version go."""
        self.dataset.close()
        if self.pin is not None:
            self.pin.close()

    @property
    def row_length(self) -> int:
        """T of every row."""
        return self.dataset.info.row_length

    @property
    def granularity(self) -> Granularity:
        """Multiples of the dataset."""
        return self.dataset.info.granularity

    @property
    def vocab_size(self) -> int:
        """Token ids lie in [0, vocab_size)."""
        return self.dataset.info.vocab_size

    def steps(
        self, *, seed: int, global_batch_rows: int, consumed_rows: int, context: ParallelContext
    ) -> Iterator[RankStep]:
        """Endless steps over the training split; their rows do not depend on dp.

        Args:
            seed: seed of the row order.
            global_batch_rows: rows of a step over all dp ranks.
            consumed_rows: where to begin.
            context: this rank.
        """
        for step in rank_steps(
            self.dataset,
            split=Split.TRAIN,
            seed=seed,
            global_batch_rows=global_batch_rows,
            dp=DpSlice(rank=context.dp_rank, size=context.sizes.dp),
            consumed_rows=consumed_rows,
        ):
            self._renew()
            yield step

    def epoch(self, consumed_rows: int) -> int:
        """Epoch of the row that follows `consumed_rows`, counted from 0."""
        return consumed_rows // self.dataset.num_rows(Split.TRAIN)

    def numbers(self, split: Split, limit: int | None = None) -> range:
        """Numbers of the first rows of a split, at most `limit`."""
        total = self.dataset.num_rows(split)
        return range(total if limit is None else min(limit, total))

    def read(self, split: Split, numbers: Sequence[int]) -> tuple[PackedRow, ...]:
        """Rows of a split by number."""
        self._renew()
        return tuple(self.dataset.rows(split, numbers)) if numbers else ()

    def source_names(self) -> tuple[str, ...]:
        """Names of the sources of all rows, sorted; reads one narrow column of every part."""
        committed = self.dataset.committed
        reader = PartReader(open_location(committed.uri))
        names: set[str] = set()
        for split in Split:
            for part in committed.manifest.parts_of(PartKind.ROWS, split):
                column = reader.read(part, columns=("sources",))["sources"]
                names |= set(column.explode().drop_nulls().unique())
        return tuple(sorted(names))

    def _renew(self) -> None:
        if self.pin is not None:
            self.pin.renew()
