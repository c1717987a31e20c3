"""The conversations that a packed dataset was made from, found again in its store.

A dataset names the tables of the split and tokenize steps that it was packed from. Decoding the
tokens instead would guess at roles and at what a format threw away, so where the tables are gone
there is nothing to export.
"""

from collections.abc import Iterable

import polars as pl

from megapack.conversation.messages import Conversation
from megapack.errors import ConfigError, MegapackError
from megapack.store.committed import Committed
from megapack.store.location import open_location
from megapack.store.manifest import PartKind
from megapack.store.part_reader import PartReader
from megapack.store.versions import read_version

_ADVICE = "Prepare the dataset again with the same store, or export to another format."


def source_tables(dataset: Committed) -> list[Committed]:
    """The tables that a dataset was packed from: conversations and documents.

    Raises:
        ConfigError: one is gone, or is another one now.
    """
    found = []
    for uri, digest in dataset.manifest.parents.items():
        try:
            table = read_version(uri)
        except MegapackError as error:
            raise ConfigError(
                f"{dataset.uri}: expected the tables that it was packed from, found that one is "
                f"gone: {error} {_ADVICE}"
            ) from error
        if table.manifest.digest != digest:
            raise ConfigError(
                f"{uri}: expected the table {digest} that {dataset.uri} was packed from, found "
                f"{table.manifest.digest}. {_ADVICE}"
            )
        found.append(table)
    return found


class ConversationLookup:
    """Conversations of a dataset by document id."""

    def __init__(self, tables: Iterable[Committed]) -> None:
        """Find their parts.

        Args:
            tables: of which those of conversations are looked into.
        """
        self._parts = [
            (PartReader(open_location(table.uri)), part)
            for table in tables
            for part in table.manifest.parts_of(PartKind.CONVERSATIONS)
        ]

    def find(self, ids: Iterable[str]) -> dict[str, Conversation]:
        """Conversations by document id; those that are not there are left out."""
        chosen = pl.DataFrame({"document_id": sorted(set(ids))}, schema={"document_id": pl.String})
        found: dict[str, Conversation] = {}
        for reader, part in self._parts:
            frame = reader.read(part, columns=("document_id", "conversation"))
            for name, text in frame.join(chosen, on="document_id", how="semi").iter_rows():
                found[name] = Conversation.loads(text)
        return found
