"""Read what the split and tokenize steps left: documents, drops, and how many came in."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from megapack.records.refs import TableRef
from megapack.steps.document_index import DocumentIndex, read_index
from megapack.steps.tables import committed, parts
from megapack.store.manifest import PartKind
from megapack.store.part_reader import Verify


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gathered:
    """What there is to pack.

    Attributes:
        index: all documents, in reading order.
        documents_in: records that came in: conversations read or dropped, and the further pieces
            of those that were split.
        files: digest of each source file's content by uri.
        tables: where all of it was read.
    """

    index: DocumentIndex
    documents_in: int
    files: Mapping[str, str]
    tables: tuple[TableRef, ...]

    def drop_frames(self) -> Iterator[pl.DataFrame]:
        """Drops of the steps before, in reading order, as frames of `megapack.drops/1`.

        Raises:
            StoreError: a table cannot be read.
            DataError: a part is damaged; an altered one is deleted, so that a rerun makes it anew.
        """
        for ref in self.tables:
            for _, frame in parts(committed(ref), PartKind.DROPS, verify=Verify.DISCARD):
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
    documents_in = sum(ref.num_records + ref.num_dropped for ref in conversations)
    for ref in documents:
        manifest = committed(ref).manifest
        documents_in += manifest.count("documents") - manifest.count("kept")
    files: dict[str, str] = {}
    for ref in conversations:
        files.update(committed(ref).manifest.files)
    return Gathered(
        index=read_index(documents),
        documents_in=documents_in,
        files=files,
        tables=(*conversations, *documents),
    )
