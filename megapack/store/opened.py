"""`megapack.open`: packed rows for any trainer, one split of one committed version.

Opening reads the manifest and nothing else; rows are fetched as they are asked for. Everything is
numpy: no torch, no megatron-core, no transformers.
"""

from collections.abc import Callable
from functools import partial
from typing import Unpack

from megapack.errors import ConfigError
from megapack.records.packed_row import PackedRow, filler_row
from megapack.records.thd_row import ThdRow, thd_row
from megapack.store.dataset_address import dataset_address
from megapack.store.fork_guard import check_can_read
from megapack.store.manifest import Split
from megapack.store.plain_rows import PlainRows
from megapack.store.rank_rows import (
    RankPlan,
    RankRows,
    Reading,
    Remainder,
    Share,
    share_of,
)
from megapack.store.reader import PackedDataset, open_dataset
from megapack.store.schema import PackedInfo


class OpenSplit:
    """One split of one version.

    Attributes:
        uri: the dataset.
        version: its version, also when the newest one was asked for.
        split: side of the split.
    """

    def __init__(self, dataset: PackedDataset, split: Split) -> None:
        self._dataset = dataset
        self.uri = dataset.committed.uri
        self.version = dataset.committed.version
        self.split = split

    @property
    def info(self) -> PackedInfo:
        """Row length, multiples, pad id, vocabulary size, tokenizer digest, format."""
        return self._dataset.info

    def __len__(self) -> int:
        """Rows of an epoch."""
        return self._dataset.num_rows(self.split)

    def __repr__(self) -> str:
        """Which version and side this is, and how many rows of which length."""
        return (
            f"<megapack {self.uri} version {self.version}, {self.split.value}: "
            f"{len(self):,} rows of {self.info.row_length:,}>"
        )

    def share(self, world: int, remainder: Remainder | str = Remainder.FILL) -> Share:
        """Rows that each of `world` data parallel ranks gets in an epoch, and what is left over."""
        return share_of(len(self), world, _remainder(remainder))

    def rows(
        self, rank: int = 0, world: int = 1, **reading: Unpack[Reading]
    ) -> RankRows[PackedRow]:
        """Rows of one data parallel rank, with documents, layout and masks.

        Args:
            rank: data parallel rank, in [0, world).
            world: data parallel ranks.
            **reading: `seed`, `epochs`, `consumed` and `remainder`, as in `Reading`.

        Returns:
            An iterator; its `consumed` after a row is where to go on when that row is done with.

        Raises:
            ConfigError: the rank or the reading makes no sense, or the split has no rows.
            StoreError: the store failed.
            DataError: a part or a row is damaged.
        """
        return self._read(rank, world, _whole, reading)

    def thd(
        self,
        rank: int = 0,
        world: int = 1,
        *,
        cp_size: int = 1,
        cp_rank: int = 0,
        **reading: Unpack[Reading],
    ) -> RankRows[ThdRow]:
        """Rows of one rank as a megatron-core loop takes them.

        Args:
            rank: data parallel rank, in [0, world); ranks that share a row by context
                parallelism give the same one.
            world: data parallel ranks.
            cp_size: ranks that share a row.
            cp_rank: this one of them.
            **reading: `seed`, `epochs`, `consumed` and `remainder`, as in `Reading`.

        Raises:
            ConfigError: as `rows`, or the dataset's multiples do not serve `cp_size`.
            StoreError: the store failed.
            DataError: a part or a row is damaged.
        """
        view = partial(thd_row, cp_size=cp_size, cp_rank=cp_rank)
        view(self._filler())  # refuses a context parallel size or rank before any fetch
        if cp_size > 1 and self.info.segment_granularity % (2 * cp_size):
            raise ConfigError(
                f"{self.uri}: cp_size {cp_size} needs slots in multiples of 2*cp = {2 * cp_size}, "
                f"found multiples of {self.info.segment_granularity}. Prepare the data again with "
                "pack_for.context_parallel_size set, or use a cp_size whose 2*cp divides that."
            )
        return self._read(rank, world, view, reading)

    def hf(self, *, seed: int = 0, epoch: int = 0) -> PlainRows:
        """The split as a map-style data set of dictionaries for Hugging Face trainers.

        Args:
            seed: seed of the row order.
            epoch: which epoch's order.
        """
        return PlainRows(self.uri, version=self.version, split=self.split, seed=seed, epoch=epoch)

    def close(self) -> None:
        """End the background fetches."""
        self._dataset.close()

    def __enter__(self) -> "OpenSplit":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _filler(self) -> PackedRow:
        return filler_row(
            row_length=self.info.row_length,
            granularity=self.info.granularity,
            pad_id=self.info.pad_id,
        )

    def _read[Row](
        self, rank: int, world: int, view: Callable[[PackedRow], Row], reading: Reading
    ) -> RankRows[Row]:
        check_can_read()
        plan = RankPlan(
            rank=rank,
            world=world,
            epochs=reading.get("epochs", 1),
            remainder=_remainder(reading.get("remainder", Remainder.FILL)),
        )
        return RankRows(
            plan,
            order=self._dataset.order(self.split, seed=reading.get("seed", 0)),
            read=partial(self._dataset.rows, self.split),
            filler=self._filler(),
            view=view,
            consumed=reading.get("consumed", 0),
        )


def open_packed(
    uri: str, version: int | None = None, split: Split | str = Split.TRAIN
) -> OpenSplit:
    """Open a packed dataset for reading: `megapack.open`.

        data = megapack.open("s3://bucket/out", split="train")
        for row in data.rows(rank=0, world=8, seed=1):
            ...  # row.tokens, row.labels(), row.layout

    Args:
        uri: dataset folder or `s3://` prefix, or the store of a job that made one dataset.
        version: number, the newest one when None.
        split: `train` or `validation`.

    Raises:
        ConfigError: there is no such version or split, it is no packed dataset, or the store
            holds several datasets.
        StoreError: the store failed.
    """
    try:
        side = Split(split)
    except ValueError as error:
        raise ConfigError(
            f"{uri}: expected split 'train' or 'validation', found {split!r}."
        ) from error
    dataset = open_dataset(dataset_address(uri), version)
    dataset.order(side, seed=0)  # refuses a split without rows
    return OpenSplit(dataset, side)


def _whole(row: PackedRow) -> PackedRow:
    return row


def _remainder(name: Remainder | str) -> Remainder:
    try:
        return Remainder(name)
    except ValueError as error:
        known = ", ".join(one.value for one in Remainder)
        raise ConfigError(f"expected remainder to be one of {known}; found {name!r}.") from error
