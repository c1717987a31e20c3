"""Which shards there are, which are done, and which rank does which of the others when.

Shards are stretches of the chosen rows in stored order, numbered from 0. In each round every dp
rank does one shard of those that are left; in the last round some have none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from megapack.engine.rows import RowSource
from megapack.jobs.extract import ExtractJob
from megapack.steps.extraction.chosen_rows import ChosenRows, RowPlace, choose_rows
from megapack.steps.extraction.payload_size import shard_rows
from megapack.store.manifest import Part
from megapack.store.schema import PayloadInfo
from megapack.store.shard_log import ShardLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Shards that are done side by side.

    Attributes:
        numbers: shards, by dp rank; fewer than dp in the last round.
        most_rows: rows of the longest of them.
    """

    numbers: tuple[int, ...]
    most_rows: int

    def shard_of(self, dp_rank: int) -> int | None:
        """Number of a dp rank's shard, None when it has none."""
        return self.numbers[dp_rank] if dp_rank < len(self.numbers) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardPlan:
    """All shards of an extraction.

    Attributes:
        chosen: rows and documents.
        shard_rows: rows of a shard, fewer in the last one.
        done: parts of the shards that earlier runs have recorded.
    """

    chosen: ChosenRows
    shard_rows: int
    done: Mapping[int, tuple[Part, ...]]

    @property
    def num_shards(self) -> int:
        """Shards, done or not."""
        return -(-self.chosen.num_rows // self.shard_rows)

    def num_rows(self, number: int) -> int:
        """Rows of a shard."""
        return min(self.shard_rows, self.chosen.num_rows - number * self.shard_rows)

    def places(self, number: int | None) -> tuple[RowPlace, ...]:
        """Rows of a shard; none for no shard."""
        if number is None:
            return ()
        first = number * self.shard_rows
        return tuple(self.chosen.places(first, first + self.shard_rows))

    def rounds(self, *, dp: int) -> Iterator[Round]:
        """What is left to do, dealt to so many dp ranks."""
        left = [number for number in range(self.num_shards) if number not in self.done]
        for begin in range(0, len(left), dp):
            numbers = tuple(left[begin : begin + dp])
            yield Round(numbers=numbers, most_rows=max(map(self.num_rows, numbers)))


def plan_shards(job: ExtractJob, info: PayloadInfo, source: RowSource, log: ShardLog) -> ShardPlan:
    """Collective over the world: rank 0 looks at dataset and records, and says what it found.

    Args:
        job: the extraction.
        info: what its payloads share.
        source: rows of the dataset.
        log: records of earlier runs.

    Raises:
        ConfigError: there is nothing to extract.
        StoreError: the store failed.
    """
    box: list[Any] = [None]
    if dist.get_rank() == 0:
        box = [(choose_rows(source.dataset.committed, job.settings), log.done())]
    dist.broadcast_object_list(box)
    chosen, done = box[0]
    return ShardPlan(
        chosen=chosen,
        shard_rows=shard_rows(job.settings, info.kinds, row_length=source.row_length),
        done=done,
    )
