"""Reading teacher payloads: all of them in stored order, or one document's by its id."""

from collections.abc import Iterator

import polars as pl

from megapack.errors import ConfigError, DataError
from megapack.records.payload import TeacherPayload
from megapack.store.committed import Committed
from megapack.store.location import Location, open_location
from megapack.store.manifest import Part, PartKind
from megapack.store.part_reader import PartReader, Verify
from megapack.store.payload_frames import frame_to_payloads
from megapack.store.schema import PayloadInfo
from megapack.store.versions import read_version


class PayloadDataset:
    """One version of a teacher payload.

    Attributes:
        committed: the version.
        info: what its payloads share.
    """

    def __init__(
        self, location: Location, committed: Committed, *, verify: Verify = Verify.SIZE
    ) -> None:
        self.committed = committed
        self.info = _info(committed)
        self._reader = PartReader(location, verify=verify)
        self._places: dict[tuple[str, int], tuple[Part, int]] | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """Payload parts, in stored order."""
        return self.committed.manifest.parts_of(PartKind.PAYLOADS)

    def payloads(self) -> Iterator[TeacherPayload]:
        """All payloads in stored order, one part in memory at a time.

        Raises:
            StoreError: a part is missing, or the store failed.
            DataError: a part or a record is damaged.
        """
        for part in self.parts:
            where = f"{self.committed.uri}/{part.key}"
            yield from frame_to_payloads(self._reader.read(part), info=self.info, where=where)

    def payload(self, document_id: str, *, teacher: int = 0) -> TeacherPayload:
        """One document's payload. The first call reads the ids of all parts.

        Raises:
            DataError: there is none for this document and teacher.
        """
        if self._places is None:
            self._places = self._find_all()
        place = self._places.get((document_id, teacher))
        if place is None:
            raise DataError(
                f"{self.committed.uri} version {self.committed.version}: expected a payload of "
                f"teacher {teacher} for document {document_id}, found none among "
                f"{len(self._places)}. Extract payloads from the dataset version in use."
            )
        part, at = place
        frame = self._reader.read(part, rows=(at, 1))
        where = f"{self.committed.uri}/{part.key} from record {at}"
        return next(frame_to_payloads(frame, info=self.info, where=where))

    def index(self) -> pl.DataFrame:
        """`document_id`, `teacher`, `num_tokens` and `labels_digest` of every payload."""
        columns = ("document_id", "teacher", "num_tokens", "labels_digest")
        return pl.concat([self._reader.read(part, columns=columns) for part in self.parts])

    def _find_all(self) -> dict[tuple[str, int], tuple[Part, int]]:
        places = {}
        for part in self.parts:
            frame = self._reader.read(part, columns=("document_id", "teacher"))
            for at, key in enumerate(frame.iter_rows()):
                places[key] = (part, at)
        return places


def open_payloads(
    store: str | Location, version: int | None = None, *, verify: Verify = Verify.SIZE
) -> PayloadDataset:
    """A version of a teacher payload, the newest one by default.

    Raises:
        ConfigError: there is no such version, or it is no teacher payload.
        StoreError: the store failed.
    """
    location = store if isinstance(store, Location) else open_location(store)
    return PayloadDataset(location, read_version(location, version), verify=verify)


def _info(committed: Committed) -> PayloadInfo:
    found = committed.manifest.payload
    if found is None:
        raise ConfigError(
            f"{committed.uri} version {committed.version}: expected a teacher payload, found kind "
            f"{committed.manifest.kind!r}. Name the store of a teacher payload."
        )
    return found
