"""Where `store` readers and `batch` meet: the rows of a step and of an evaluation, by rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from megapack.layout.granularity import Granularity
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow
from megapack.records.refs import DatasetRef
from megapack.store.location import open_location
from megapack.store.manifest import Split
from megapack.store.order import RowOrder
from megapack.store.reader import PackedDataset
from megapack.store.versions import read_version


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRows:
    """Rows of one step.

    Attributes:
        epoch: epoch of its first row, counted from 0.
        numbers: row numbers inside the training split, over all dp ranks, in consumption order.
        rows: this dp rank's rows.
    """

    epoch: int
    numbers: tuple[int, ...]
    rows: tuple[PackedRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSource:
    """Rows of a committed dataset as a run consumes them.

    Attributes:
        dataset: the committed version.
        order: endless order over the training split.
        costs: int64 [rows], attention cost of each row of the training split.
    """

    dataset: PackedDataset
    order: RowOrder
    costs: npt.NDArray[np.int64]

    @classmethod
    def open(cls, ref: DatasetRef, *, seed: int) -> Self:
        """Open the dataset that a job names.

        Args:
            ref: committed version.
            seed: seed of the row order.

        Raises:
            ConfigError: there is no such version, or its training split is empty.
            StoreError: the store failed, or holds another content than `ref` names.
        """
        dataset = open_referenced(ref)
        return cls(
            dataset=dataset,
            order=dataset.order(Split.TRAIN, seed=seed),
            costs=dataset.index(Split.TRAIN)["cost"].to_numpy(),
        )

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

    def step(self, consumed: int, *, global_batch_rows: int, context: ParallelContext) -> StepRows:
        """Rows of the step that begins after `consumed` rows; which they are does not depend on dp.

        Args:
            consumed: rows consumed so far, over all epochs.
            global_batch_rows: rows of a step over all dp ranks.
            context: this rank.
        """
        plan = self.order.step(consumed=consumed, global_batch_rows=global_batch_rows)
        mine = plan.rank_rows(
            dp_rank=context.dp_rank, dp_size=context.sizes.dp, costs=self.costs[plan.rows]
        )
        return StepRows(
            epoch=consumed // self.order.num_rows,
            numbers=tuple(plan.rows.tolist()),
            rows=tuple(self.dataset.rows(Split.TRAIN, mine)),
        )

    def validation_rows(self, limit: int) -> range:
        """Numbers of the first validation rows, at most `limit`."""
        return range(min(limit, self.dataset.num_rows(Split.VALIDATION)))

    def read_validation(self, numbers: Sequence[int]) -> tuple[PackedRow, ...]:
        """Validation rows by number."""
        return tuple(self.dataset.rows(Split.VALIDATION, numbers)) if numbers else ()


def open_referenced(ref: DatasetRef) -> PackedDataset:
    """The dataset version that a reference names, with the content it names.

    Raises:
        ConfigError: there is no such version.
        StoreError: the store failed, or holds another content.
    """
    location = open_location(ref.uri)
    committed = read_version(location, ref.version)
    committed.check_ref(ref)
    return PackedDataset(location, committed)
