"""`ShardLog`: which shards of a long run are done, so that the next run begins after them.

One object a shard, `shards/<address>/<number>.json`, names the parts that it wrote. It is created
with put-if-absent: of two runs of one job the first to finish a shard is who wrote it, and the
other takes its parts. A record counts when it can be read and all its parts stand; any other is
removed and its shard is computed again.

Parts that a record names are kept by garbage collection as if a version named them, and a commit
need not make them young again, which on S3 is an upload of each: an extraction may take longer
than the day after which unnamed parts go. A run renews its records; those of a run that nobody took
up again expire after seven days, and their parts go with the next collection. Records are cleared
after the commit, so that at any time a record or a version names the parts.
"""

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from pydantic import BaseModel, ConfigDict, ValidationError

from megapack.store.location import Location, MissingKeyError
from megapack.store.manifest import Part

SHARD_PREFIX = "shards/"
SHARD_EXPIRES_S = 7 * 24 * 3600.0
_RENEW_AFTER_S = SHARD_EXPIRES_S / 7
_THREADS = 8


class ShardRecord(BaseModel):
    """A finished shard.

    Attributes:
        number: of the shard.
        parts: that it wrote.
        state: JSON text of where the run stood after it, "" where shards do not follow on one
            another.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    parts: tuple[Part, ...]
    state: str = ""


class ShardLog:
    """The finished shards of one job."""

    def __init__(self, location: Location, address: str) -> None:
        """Name a job; nothing is contacted.

        Args:
            location: the store that its parts go to.
            address: of the job, a single path component.
        """
        self._location = location
        self._prefix = f"{SHARD_PREFIX}{address}/"
        self._renewed = time.monotonic()

    def done(self) -> dict[int, tuple[Part, ...]]:
        """Parts of each finished shard, by its number. Renews the records.

        Raises:
            StoreError: the store failed.
        """
        return {number: one.parts for number, one in self.records().items()}

    def records(self) -> dict[int, ShardRecord]:
        """Finished shards, by number. Renews the records.

        Raises:
            StoreError: the store failed.
        """
        keys = [one.key for one in self._location.list_keys(self._prefix)]
        with ThreadPoolExecutor(max_workers=_THREADS) as pool:
            records = [one for one in pool.map(self._standing, keys) if one is not None]
        self._renew(keys)
        return {one.number: one for one in records}

    def record(self, number: int, parts: Iterable[Part], *, state: str = "") -> tuple[Part, ...]:
        """Say that a shard is done; its parts are written.

        Args:
            number: of the shard.
            parts: that it wrote.
            state: JSON text of where to go on after it, for shards that follow on one another.

        Returns:
            The parts that stand for this shard: those given, or those of another run that was
            first.

        Raises:
            StoreError: the store failed.
        """
        if time.monotonic() - self._renewed > _RENEW_AFTER_S:
            self._renew([one.key for one in self._location.list_keys(self._prefix)])
        key = f"{self._prefix}{number:08d}.json"
        record = ShardRecord(number=number, parts=tuple(parts), state=state)
        data = record.model_dump_json().encode()
        if self._location.put_if_absent(key, data):
            return record.parts
        standing = self._standing(key)
        if standing is None:
            self._location.put(key, data)
            return record.parts
        return standing.parts

    def clear(self) -> None:
        """Remove all records: a version names the parts now. Raises StoreError."""
        keys = [one.key for one in self._location.list_keys(self._prefix)]
        with ThreadPoolExecutor(max_workers=_THREADS) as pool:
            list(pool.map(self._location.delete, keys))

    def _standing(self, key: str) -> ShardRecord | None:
        """A record whose parts all stand; any other is removed."""
        try:
            record = _read(self._location, key)
        except MissingKeyError:
            return None
        if record is not None and self._stand(record.parts):
            return record
        self._location.delete(key)
        return None

    def _stand(self, parts: Iterable[Part]) -> bool:
        return all(self._location.size(part.key) == part.size for part in parts)

    def _renew(self, keys: Iterable[str]) -> None:
        """Make records young; one that another run has just removed is left gone."""
        for key in keys:
            found = self._location.stat(key)
            if found is None or found.age_s < _RENEW_AFTER_S:
                continue
            try:
                self._location.touch(key)
            except MissingKeyError:
                continue
        self._renewed = time.monotonic()


def recorded_parts(location: Location) -> frozenset[str]:
    """Keys of the parts that the records of any job name. Raises StoreError."""
    keys = [one.key for one in location.list_keys(SHARD_PREFIX)]
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        records = list(pool.map(lambda key: _read_if_there(location, key), keys))
    return frozenset(part.key for one in records if one is not None for part in one.parts)


def _read_if_there(location: Location, key: str) -> ShardRecord | None:
    try:
        return _read(location, key)
    except MissingKeyError:
        return None


def _read(location: Location, key: str) -> ShardRecord | None:
    """A record, None when its bytes are none."""
    data = location.get(key)
    try:
        return ShardRecord.model_validate_json(data)
    except ValidationError:
        return None
