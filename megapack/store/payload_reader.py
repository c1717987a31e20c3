"""Reading teacher payloads: all of them in stored order, or those of some documents by id.

A student reads its documents in an order of its own, so a read costs whole row groups of about a
MiB, of values before compression. Measured with SeaweedFS on the same machine, eight documents of a
thousand (top-64) or six hundred (H = 4096) tokens drawn at random, thousands of tokens a second
under load from other work:

| row groups of | 1 MiB | 4 MiB | 32 MiB |
| --- | --- | --- | --- |
| top-64, local folder | 129 | 32 | 5 |
| top-64, S3, one request after another | 25 | 18 | 3 |
| hidden bf16, local folder | 13 | 8 | 2 |
| hidden bf16, S3, one request after another | 5 | 6 | 1 |

The same parts came from S3 as a whole at 515 (top-64) and 5 (hidden). So parts are cached whole on
the node where all of the kind fit into the bytes that the caller allows; else row groups are read
in place, several at a time, and nothing is kept.
"""

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import polars as pl

from megapack.errors import ConfigError
from megapack.records.payload import PayloadKind, TeacherPayload
from megapack.store.committed import Committed
from megapack.store.lm_head import LmHeadReader, lm_head_parts
from megapack.store.local_folder import LocalFolder
from megapack.store.location import Location, open_location
from megapack.store.manifest import Part, PartKind
from megapack.store.part_cache import PartCache
from megapack.store.part_reader import PartReader, Verify
from megapack.store.payload_frames import frame_to_payloads
from megapack.store.payload_parts import PART_KINDS
from megapack.store.payload_places import DocumentHashes, PartPlaces, Stretch
from megapack.store.payload_vocabulary import read_vocabulary
from megapack.store.schema import SCHEMAS, PayloadInfo, SchemaId
from megapack.store.versions import read_version

_THREADS = 8


class PayloadDataset:
    """One version of a teacher payload: one record of each kind a document. Threads may share it.

    Attributes:
        committed: the version.
        info: what its payloads share.
    """

    def __init__(
        self,
        location: Location,
        committed: Committed,
        *,
        verify: Verify = Verify.SIZE,
        cache: PartCache | None = None,
    ) -> None:
        self.committed = committed
        self.info = _info(committed)
        self._location = location
        self._cache = cache
        self._reader = PartReader(location, verify=verify)
        self._hashes: DocumentHashes | None = None
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

    def index(self) -> pl.DataFrame:
        """`document_id`, `teacher`, `num_tokens`, `labels_digest`, in the order of every kind.

        Raises:
            StoreError: a part is missing, or the store failed.
            DataError: a part is damaged.
        """
        parts = self.committed.manifest.parts_of(PartKind.PAYLOAD_INDEX)
        if not parts:
            return pl.DataFrame(schema=SCHEMAS[SchemaId.PAYLOAD_INDEX])
        with ThreadPoolExecutor(max_workers=_THREADS) as pool:
            return pl.concat(pool.map(self._reader.read, parts))

    def fetch(self, document_ids: Collection[str], kind: PayloadKind) -> dict[str, TeacherPayload]:
        """Payloads of some documents, by id; without those that the payload does not hold.

        The first call reads the index.

        Args:
            document_ids: in any order; one that is named twice comes once.
            kind: which payload of them.

        Raises:
            ConfigError: the payload does not hold this kind.
            DataError: a part or a record is damaged.
            StoreError: a part is missing, or the store failed.
        """
        wanted = pl.Series(list(dict.fromkeys(document_ids)), dtype=pl.String)
        hashes = self._find()
        places = PartPlaces(self.parts(kind), num_records=len(hashes))
        stretches = list(places.stretches(hashes.records(wanted.to_list())))
        cache = self._cache_of(kind)
        found: dict[str, TeacherPayload] = {}
        with ThreadPoolExecutor(max_workers=self._threads(cache)) as pool:
            frames = pool.map(lambda one: self._read(one, cache), stretches)
            for stretch, frame in zip(stretches, frames, strict=True):
                own = frame.filter(pl.col("document_id").is_in(wanted.implode()))
                where = f"{self.committed.uri}/{stretch.part.key}"
                for payload in frame_to_payloads(own, kind=self.info.of(kind), where=where):
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

    def _find(self) -> DocumentHashes:
        with self._lock:
            if self._hashes is None:
                self._hashes = DocumentHashes(self.index()["document_id"])
            return self._hashes

    def _cache_of(self, kind: PayloadKind) -> PartCache | None:
        remote = not isinstance(self._location, LocalFolder)
        fits = remote and self._cache is not None and self._cache.holds(self.parts(kind))
        return self._cache if fits else None

    def _threads(self, cache: PartCache | None) -> int:
        """Several where each read waits for the store."""
        local = cache is not None or isinstance(self._location, LocalFolder)
        return 1 if local else _THREADS

    def _read(self, stretch: Stretch, cache: PartCache | None) -> pl.DataFrame:
        rows = (stretch.first, stretch.count)
        if cache is None:
            return self._reader.read(stretch.part, rows=rows)
        return cache.read(self._location, stretch.part, rows=rows)


def open_payloads(
    store: str | Location,
    version: int | None = None,
    *,
    verify: Verify = Verify.SIZE,
    cache: PartCache | None = None,
) -> PayloadDataset:
    """A version of a teacher payload, the newest one by default.

    Args:
        store: the store.
        version: its number.
        verify: how parts are checked before they are first read.
        cache: for parts of a remote store, on this node; without one nothing is kept.

    Raises:
        ConfigError: there is no such version, or it is no teacher payload.
        StoreError: the store failed.
    """
    location = store if isinstance(store, Location) else open_location(store)
    return PayloadDataset(location, read_version(location, version), verify=verify, cache=cache)


def _info(committed: Committed) -> PayloadInfo:
    found = committed.manifest.payload
    if found is None:
        raise ConfigError(
            f"{committed.uri} version {committed.version}: expected a teacher payload, found kind "
            f"{committed.manifest.kind!r}. Name the store of a teacher payload."
        )
    return found
