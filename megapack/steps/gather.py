"""Read what the split and tokenize steps left: documents, drops, and how many came in."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import polars as pl

from megapack.records.drops import DropLedger
from megapack.records.refs import TableRef
from megapack.steps.document_index import DocumentIndex, read_index
from megapack.steps.tables import committed, parts
from megapack.store.committed import Committed
from megapack.store.manifest import PartKind
from megapack.store.part_reader import Verify

_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gathered:
    """What there is to pack.

    Attributes:
        index: all documents, in reading order.
        documents_in: records that came in: conversations read or dropped, and the further pieces
            of those that were split.
        dropped: counts of what the steps before dropped.
        files: digest of each source file's content by uri.
        tables: where all of it was read, in reading order.
        versions: the same tables as they stand.
    """

    index: DocumentIndex
    documents_in: int
    dropped: DropLedger
    files: Mapping[str, str]
    tables: tuple[TableRef, ...]
    versions: tuple[Committed, ...]

    def drop_frames(self) -> Iterator[pl.DataFrame]:
        """Drops of the steps before, in reading order, as frames of `megapack.drops/1`.

        Raises:
            StoreError: a table cannot be read.
            DataError: a part is damaged; an altered one is deleted, so that a rerun makes it anew.
        """
        for version in self.versions:
            for _, frame in parts(version, PartKind.DROPS, verify=Verify.DISCARD):
                yield frame


def gather(conversations: Sequence[TableRef], documents: Sequence[TableRef]) -> Gathered:
    """Read the small columns of the tables of the earlier steps.

    Args:
        conversations: tables of the split step.
        documents: tables of the tokenize step, in reading order.

    Raises:
        StoreError: a table cannot be read.
        DataError: a part is damaged; an altered one is deleted, so that a rerun makes it anew.
    """
    tables = (*conversations, *documents)
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        versions = tuple(pool.map(committed, tables))
    documents_in = sum(ref.num_records + ref.num_dropped for ref in conversations)
    dropped = DropLedger()
    files: dict[str, str] = {}
    for ref, version in zip(tables, versions, strict=True):
        dropped = dropped.plus(version.manifest.drop_ledger())
        for seen_first, content in version.manifest.files.items():
            files[ref.origin or seen_first] = content
    tokenized = versions[len(conversations) :]
    for version in tokenized:
        count = version.manifest.count
        documents_in += count("documents") - count("kept") + count("dropped_pieces")
    return Gathered(
        index=read_index(tokenized),
        documents_in=documents_in,
        dropped=dropped,
        files=files,
        tables=tables,
        versions=versions,
    )
