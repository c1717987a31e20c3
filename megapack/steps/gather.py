"""Read what the split and tokenize steps left: documents, drops, and how many came in."""

from collections.abc import Sequence
from dataclasses import dataclass

from megapack.records.document import Document
from megapack.records.drops import Drop
from megapack.records.refs import TableRef
from megapack.steps.tables import committed, parts
from megapack.store.document_frames import frame_to_documents, frame_to_drops
from megapack.store.manifest import PartKind
from megapack.store.part_reader import Verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What there is to pack.

    Attributes:
        documents: in reading order.
        drops: of the steps before, in reading order.
        documents_in: records that came in: conversations read or dropped, and the further pieces
            of those that were split.
    """

    documents: list[Document]
    drops: list[Drop]
    documents_in: int


def gather(conversations: Sequence[TableRef], documents: Sequence[TableRef]) -> Gathered:
    """Read the tables of the earlier steps.

    Args:
        conversations: tables of the split step.
        documents: tables of the tokenize step.

    Raises:
        StoreError: a table cannot be read.
        DataError: a part is damaged; an altered one is deleted, so that a rerun makes it again.
    """
    found: list[Document] = []
    drops: list[Drop] = []
    documents_in = sum(ref.num_records + ref.num_dropped for ref in conversations)
    for ref in [*conversations, *documents]:
        version = committed(ref)
        for part, frame in parts(version, PartKind.DOCUMENTS, verify=Verify.DISCARD):
            where = f"{version.uri}/{part.key}"
            found += frame_to_documents(frame, where=where)
        for _, frame in parts(version, PartKind.DROPS, verify=Verify.DISCARD):
            drops += frame_to_drops(frame)
    for ref in documents:
        manifest = committed(ref).manifest
        documents_in += manifest.count("documents") - manifest.count("kept")
    return Gathered(documents=found, drops=drops, documents_in=documents_in)
