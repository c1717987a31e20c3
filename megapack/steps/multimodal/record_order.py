"""The order in which records of a group are read: a function of seed, epoch, group and reading.

All records form one axis. Units (row groups, or blocks of lines) are shuffled whole, blocks of a
unit keep their order, and records are shuffled within a block, so that reads stay near. A worker
reads one stretch of the axis; stretches are equal within one record, and every record is in exactly
one. Letters: B blocks, n records of a block, N records.
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from megapack.errors import ConfigError
from megapack.records.digest import canonical_json
from megapack.records.shard import Shard

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderKey:
    """What an order depends on.

    Attributes:
        seed: of the job.
        epoch: from 0.
        group: its name.
        reading: from 0.
    """

    seed: int
    epoch: int
    group: str
    reading: int

    def generator(self, block: int) -> np.random.Generator:
        """Draws the order within a block, or with -1 that of the units."""
        key = canonical_json(["order", self.seed, self.epoch, self.group, self.reading, block])
        entropy = int.from_bytes(blake2b(key, digest_size=16).digest(), "little")
        return np.random.Generator(np.random.PCG64(entropy))


class RecordOrder:
    """One shuffle of the records."""

    def __init__(self, units: Int64, sizes: Int64, key: OrderKey) -> None:
        """Shuffle.

        Args:
            units: int64 [B], ascending from 0 without gaps: the unit of each block.
            sizes: int64 [B], records of each, at least 1.
            key: what the order depends on.
        """
        self._key = key
        self._sizes = sizes
        ranks = key.generator(-1).permutation(int(units[-1]) + 1)
        self._blocks = np.argsort(ranks[units], kind="stable")
        self._ends = np.cumsum(sizes[self._blocks])
        self._block = -1
        self._inside: Int64 = np.zeros(0, dtype=np.int64)

    def place(self, position: int) -> tuple[int, int]:
        """Block, and number of the record in it, at a position from 0 to N-1."""
        at = int(np.searchsorted(self._ends, position, side="right"))
        block = int(self._blocks[at])
        size = int(self._sizes[block])
        if block != self._block:
            self._inside = self._key.generator(block).permutation(size)
            self._block = block
        return block, int(self._inside[position - int(self._ends[at]) + size])


def stretch(num_records: int, shard: Shard, *, group: str) -> range:
    """Positions of the axis that a worker reads.

    Raises:
        ConfigError: there are fewer records than workers.
    """
    if num_records < shard.count:
        raise ConfigError(
            f"group {group}: expected at least one record for each of {shard.count} workers "
            f"({shard.ranks} ranks x {shard.workers}), found {num_records} records. Use fewer "
            "workers, or add data."
        )
    first, end = (number * num_records // shard.count for number in (shard.index, shard.index + 1))
    return range(first, end)
