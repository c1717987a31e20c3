"""A store in memory whose users take turns, operation by operation, and whose answers get lost.

Each user (`Actor`) is a thread with a view of its own on the shared objects. A scheduler lets one
of them do one operation at a time, in an order that is drawn; before or after an operation the
store may fail. The store's clock moves only when the scheduler says so.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Semaphore, Thread

from megapack.errors import StoreError
from megapack.store.objects import Location, MissingKeyError, ParquetSource, StoredKey


@dataclass
class Objects:
    """What the store holds: content and time of writing by key, and the time now."""

    held: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    now: float = 0.0


class Actor(Thread):
    """A user of the store; `work` gets its location."""

    def __init__(self, objects: Objects, work: Callable[["View"], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.view = View(objects, self)
        self.work = work
        self.go = Semaphore(0)
        self.idle = Semaphore(0)
        self.failures: Iterator[str] = iter(())
        self.error: BaseException | None = None
        self.still = False  # no time may pass, as while a commit is under way
        self.done = False

    def run(self) -> None:
        self.go.acquire()
        try:
            self.work(self.view)
        except BaseException as error:  # noqa: BLE001 - shown by the scheduler's thread
            self.error = error
        self.done = True
        self.idle.release()

    def turn(self) -> None:
        """Wait for the next turn."""
        self.idle.release()
        self.go.acquire()


class View(Location):
    """The store as one actor sees it."""

    uri = "memory"

    def __init__(self, objects: Objects, actor: Actor) -> None:
        self._objects = objects
        self._actor = actor
        self._lock = Lock()

    @contextmanager
    def _operation(self, *, at_once: bool = False) -> Iterator[dict[str, tuple[bytes, float]]]:
        with self._lock:
            if not at_once:
                self._actor.turn()
            failure = next(self._actor.failures, "")
            if failure == "before":
                raise StoreError("the request got lost")
            yield self._objects.held
            if failure == "after":
                raise StoreError("the answer got lost")

    def get(self, key: str) -> bytes:
        with self._operation() as held:
            if key not in held:
                raise MissingKeyError(key)
            return held[key][0]

    def put(self, key: str, data: bytes) -> None:
        with self._operation() as held:
            held[key] = (data, self._objects.now)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._operation() as held:
            if key in held:
                return False
            held[key] = (data, self._objects.now)
            return True

    def stat(self, key: str) -> StoredKey | None:
        with self._operation() as held:
            return self._stored(key) if key in held else None

    def size(self, key: str) -> int | None:
        found = self.stat(key)
        return None if found is None else found.size

    def touch(self, key: str) -> None:
        with self._operation() as held:
            if key not in held:
                raise MissingKeyError(key)
            held[key] = (held[key][0], self._objects.now)

    def delete(self, key: str) -> None:
        # The last look before a deletion and the deletion are a moment apart, and what may be
        # deleted then is a day old: no writer comes in between.
        with self._operation(at_once=True) as held:
            held.pop(key, None)

    def list_keys(self, prefix: str) -> list[StoredKey]:
        with self._operation() as held:
            return [self._stored(key) for key in sorted(held) if key.startswith(prefix)]

    def get_file(self, key: str, path: Path) -> None:
        path.write_bytes(self.get(key))

    def put_file(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def parquet_source(self, key: str) -> ParquetSource:
        raise AssertionError(f"nothing here holds Parquet, {key} was asked for as such")

    def _stored(self, key: str) -> StoredKey:
        data, written = self._objects.held[key]
        return StoredKey(key=key, size=len(data), age_s=self._objects.now - written)


def interleave(
    objects: Objects, actors: list[Actor], turns: Iterator[int], hours: Iterator[float]
) -> None:
    """Let the actors work, one operation at a time, until all are done.

    Args:
        objects: the store.
        actors: its users.
        turns: whose turn it is, by number among those that are not done; round robin at its end.
        hours: how much time passes before each turn, where no actor stands still; 0 at its end.
    """
    for actor in actors:
        actor.start()
    count = 0
    while alive := [actor for actor in actors if not actor.done]:
        if not any(actor.still for actor in alive):
            objects.now += 3600 * next(hours, 0.0)
        actor = alive[next(turns, count) % len(alive)]
        count += 1
        actor.go.release()
        actor.idle.acquire()
    for actor in actors:
        actor.join()
        if actor.error is not None:
            raise actor.error
