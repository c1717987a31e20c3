"""Reading teacher payloads: all of them in stored order, or those of some documents by id."""

from collections.abc import Collection, Iterator
from threading import Lock

import polars as pl

from megapack.errors import ConfigError
from megapack.records.payload import PayloadKind, TeacherPayload
from megapack.store.committed import Committed
from megapack.store.lm_head import LmHeadReader, lm_head_parts
from megapack.store.location import Location, open_location
from megapack.store.manifest import Part, PartKind
from megapack.store.part_reader import PartReader, Verify
from megapack.store.payload_frames import frame_to_payloads
from megapack.store.payload_parts import PART_KINDS
from megapack.store.payload_places import PayloadPlaces, Stretch
from megapack.store.payload_vocabulary import read_vocabulary
from megapack.store.schema import PayloadInfo
from megapack.store.versions import read_version

INDEX_COLUMNS = ("document_id", "teacher", "num_tokens", "labels_digest")


class PayloadDataset:
    """One version of a teacher payload: one record of each kind a document. Threads may share it.

    Attributes:
        committed: the version.
        info: what its payloads share.
    """

    def __init__(
        self, location: Location, committed: Committed, *, verify: Verify = Verify.SIZE
    ) -> None:
        self.committed = committed
        self.info = _info(committed)
        self._location = location
        self._reader = PartReader(location, verify=verify)
        self._places: dict[PayloadKind, PayloadPlaces] = {}
        self._lock = Lock()

    def parts(self, kind: PayloadKind) -> tuple[Part, ...]:
        """Parts of a kind, in stored order.

        Raises:
            ConfigError: the payload does not hold this kind.
        """
        return self.committed.manifest.parts_of(PART_KINDS[self.info.of(kind).kind])

    def payloads(self, kind: PayloadKind) -> Iterator[TeacherPayload]:
        """All payloads of a kind in stored order, one part in memory at a time.

        Raises:
            ConfigError: the payload does not hold this kind.
            StoreError: a part is missing, or the store failed.
            DataError: a part or a record is damaged.
        """
        for part in self.parts(kind):
            where = f"{self.committed.uri}/{part.key}"
            frame = self._reader.read(part)
            yield from frame_to_payloads(frame, kind=self.info.of(kind), where=where)

    def index(self, kind: PayloadKind) -> pl.DataFrame:
        """`document_id`, `teacher`, `num_tokens` and `labels_digest` of a kind, in stored order.

        Raises: as `payloads` does.
        """
        frames = [self._reader.read(part, columns=INDEX_COLUMNS) for part in self.parts(kind)]
        return pl.concat(frames)

    def fetch(self, document_ids: Collection[str], kind: PayloadKind) -> dict[str, TeacherPayload]:
        """Payloads of some documents, by id; without those that the payload does not hold.

        The first call reads the ids of all parts.

        Args:
            document_ids: in any order; one that is named twice comes once.
            kind: which payload of them.

        Raises:
            ConfigError: the payload does not hold this kind.
            DataError: a part or a record is damaged.
            StoreError: a part is missing, or the store failed.
        """
        wanted = dict.fromkeys(document_ids)
        found: dict[str, TeacherPayload] = {}
        for stretch in self._find(kind).stretches(list(wanted)):
            for payload in self._read(stretch, kind):
                if payload.document_id in wanted:
                    found[payload.document_id] = payload
        return found

    def lm_head(self, teacher: int = 0) -> LmHeadReader:
        """A teacher's LM head.

        Raises:
            ConfigError: none is published beside this payload.
            DataError: its files are not those that the manifest says.
        """
        info = self.info.lm_heads.get(teacher)
        if info is None:
            raise ConfigError(
                f"{self.committed.uri} version {self.committed.version}: expected an LM head of "
                f"teacher {teacher}, found none. It is published with kind hidden: extract that."
            )
        return LmHeadReader(self._location, lm_head_parts(self._files(), teacher), info)

    def vocabulary(self) -> dict[str, int]:
        """Token to id, of the tokenizer that the documents and the teacher share.

        Raises:
            ConfigError: none is published beside this payload.
            DataError: the file was altered.
            StoreError: the store failed.
        """
        return read_vocabulary(self._location, self._files())

    def _files(self) -> tuple[Part, ...]:
        return self.committed.manifest.parts_of(PartKind.FILE)

    def _find(self, kind: PayloadKind) -> PayloadPlaces:
        with self._lock:
            if kind not in self._places:
                columns = ("document_id",)
                self._places[kind] = PayloadPlaces(
                    (part, self._reader.read(part, columns=columns)["document_id"])
                    for part in self.parts(kind)
                )
            return self._places[kind]

    def _read(self, stretch: Stretch, kind: PayloadKind) -> Iterator[TeacherPayload]:
        frame = self._reader.read(stretch.part, rows=(stretch.first, stretch.count))
        where = f"{self.committed.uri}/{stretch.part.key} from record {stretch.first}"
        return frame_to_payloads(frame, kind=self.info.of(kind), where=where)


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
