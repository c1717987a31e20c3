"""Shards on their way to the store: one is written in the background, the forward waits for it.

All methods are collective over the world, so that ranks wait together and a failed upload ends
all of them with the same error.
"""

import time
from collections.abc import Sequence

import torch

from megapack.engine.together import Work, all_ended, wait_for_all
from megapack.records.payload import TeacherPayload
from megapack.store.location import Location
from megapack.store.manifest import Part
from megapack.store.payload_parts import write_payload_parts
from megapack.store.schema import PayloadInfo
from megapack.store.shard_log import ShardLog


class ShardWriter:
    """Encodes, uploads and records shards, one at a time.

    Args:
        location: where parts go.
        log: where a shard is recorded once its parts stand.
        info: what all payloads share.
        device: of this rank.
    """

    def __init__(
        self, location: Location, log: ShardLog, info: PayloadInfo, device: torch.device
    ) -> None:
        self._location = location
        self._log = log
        self._info = info
        self._device = device
        self._flight: Work[tuple[Part, ...]] | None = None
        self._number: int | None = None
        self._under_way = 0
        self.parts: dict[int, tuple[Part, ...]] = {}
        self.stored = 0
        self.waited_s = 0.0

    def put(self, number: int | None, payloads: Sequence[TeacherPayload], *, beside: int) -> None:
        """Begin to write a shard, after the one before has ended.

        Args:
            number: of this rank's shard; None on ranks that write none.
            payloads: of it, in stored order.
            beside: shards that all ranks together begin to write now.

        Raises:
            StoreError: the shard before could not be written; on all ranks alike.
        """
        self.finish()
        self._under_way = beside
        if number is not None:
            self._number = number
            self._flight = Work(lambda: self._write(number, payloads), name="payload-upload")

    def look(self) -> None:
        """Raise what a shard under way has failed with; wait for nobody.

        Raises:
            StoreError: it could not be written; on all ranks alike.
        """
        all_ended(self._flight, self._device)

    def finish(self) -> None:
        """Wait until nothing is under way.

        Raises:
            StoreError: a shard could not be written; on all ranks alike.
        """
        started = time.perf_counter()
        wait_for_all(self._flight, self._device)
        self.waited_s += time.perf_counter() - started
        if self._flight is not None and self._number is not None:
            self.parts[self._number] = self._flight.result()
        self.stored += self._under_way
        self._flight, self._number, self._under_way = None, None, 0

    def _write(self, number: int, payloads: Sequence[TeacherPayload]) -> tuple[Part, ...]:
        parts = write_payload_parts(self._location, payloads, info=self._info)
        return self._log.record(number, parts)
