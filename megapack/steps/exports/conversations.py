"""The conversations that a packed dataset was made from, found again in its store.

The split step's tables stand under `steps/split` of the store; those whose digest the dataset's
documents name are its own. Decoding the tokens instead would guess at roles and at what a format
threw away, so where the tables are gone there is nothing to export.
"""

from collections.abc import Iterable

import polars as pl

from megapack.conversation.messages import Conversation
from megapack.errors import ConfigError, MegapackError
from megapack.store.committed import Committed
from megapack.store.location import open_location
from megapack.store.manifest import Part, PartKind
from megapack.store.part_reader import PartReader
from megapack.store.versions import VERSION_PREFIX, read_version

_TOKENIZE = "/steps/tokenize/"
_ADVICE = "Prepare the dataset again with the same store, or export to another format."


def document_tables(dataset: Committed) -> list[Committed]:
    """The tokenize step's tables that a dataset was packed from.

    Raises:
        ConfigError: one is gone.
    """
    try:
        return [read_version(uri) for uri in dataset.manifest.parents]
    except MegapackError as error:
        raise ConfigError(
            f"{dataset.uri}: expected the tables that it was packed from, found that one is gone: "
            f"{error} {_ADVICE}"
        ) from error


class ConversationLookup:
    """Conversations of a dataset by document id."""

    def __init__(self, tables: Iterable[Committed]) -> None:
        """Find the tables.

        Args:
            tables: the tokenize step's.

        Raises:
            ConfigError: a table of conversations is gone.
            StoreError: the store failed.
        """
        self._parts: list[tuple[PartReader, Part]] = []
        wanted: dict[str, str] = {}
        for table in tables:
            store = table.uri.partition(_TOKENIZE)[0]
            wanted[table.manifest.parents["conversations"]] = f"{store}/steps/split"
        for root in sorted(set(wanted.values())):
            for version in _versions(root):
                if wanted.pop(version.manifest.digest, None) is not None:
                    reader = PartReader(open_location(version.uri))
                    parts = version.manifest.parts_of(PartKind.CONVERSATIONS)
                    self._parts += [(reader, part) for part in parts]
        if wanted:
            place = next(iter(wanted.values()))
            raise ConfigError(
                f"expected the conversations of the dataset under {place}, found that "
                f"{len(wanted)} of their tables are gone. {_ADVICE}"
            )

    def find(self, ids: Iterable[str]) -> dict[str, Conversation]:
        """Conversations by document id; those that are not there are left out."""
        chosen = pl.DataFrame({"document_id": sorted(set(ids))}, schema={"document_id": pl.String})
        found: dict[str, Conversation] = {}
        for reader, part in self._parts:
            frame = reader.read(part, columns=("document_id", "conversation"))
            for name, text in frame.join(chosen, on="document_id", how="semi").iter_rows():
                found[name] = Conversation.loads(text)
        return found


def _versions(root: str) -> Iterable[Committed]:
    marker = f"/{VERSION_PREFIX}"
    keys = [stored.key for stored in open_location(root).list_keys("")]
    for table in sorted({key.partition(marker)[0] for key in keys if marker in key}):
        yield read_version(f"{root}/{table}")
