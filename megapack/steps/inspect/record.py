"""What became of one record of a source file: the documents placed from it, and its drops.

Costs the places of all documents in the tables of the tokenize step, the document ids of all rows,
and the row groups that hold what was found.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from megapack.errors import ConfigError, MegapackError
from megapack.records.drops import Drop
from megapack.steps.drop_examples import all_drops, place
from megapack.steps.inspect.select import single
from megapack.steps.inspect.shown import Group
from megapack.steps.row_columns import find_documents
from megapack.steps.wording import counted
from megapack.store.committed import Committed
from megapack.store.location import open_location
from megapack.store.manifest import PartKind
from megapack.store.part_reader import PartReader
from megapack.store.reader import PackedDataset
from megapack.store.versions import read_version

_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A record of a source file.

    Attributes:
        file: address of the file, or its last parts.
        line: record number in it, from 0.
    """

    file: str
    line: int

    @classmethod
    def parse(cls, text: str) -> "Place":
        """From `FILE:LINE`, lines counted from 1 as editors do.

        >>> Place.parse("s3://b/chats.jsonl:12")
        Place(file='s3://b/chats.jsonl', line=11)

        Raises:
            ConfigError: it is written otherwise.
        """
        file, _, line = text.rpartition(":")
        if not file or not line.isdecimal() or int(line) < 1:
            raise ConfigError(f"--at {text!r}: expected FILE:LINE, with lines counted from 1.")
        return cls(file=file, line=int(line) - 1)

    def of(self, uri: str) -> bool:
        """Whether the file is this one."""
        return uri == self.file or uri.endswith(f"/{self.file}")


def record_at(dataset: PackedDataset, text: str) -> tuple[list[str], Iterator[Group]]:
    """What became of the record at `FILE:LINE`.

    Returns:
        A line for each of its drops, and for what cannot be told; the placed documents.

    Raises:
        ConfigError: no such file was read, or nothing is known of the line.
        StoreError: the store failed.
    """
    wanted, version = Place.parse(text), dataset.committed
    _check_file(version.manifest.files, wanted, text=text)
    ids, gone = _document_ids(version.manifest.parents, wanted)
    drops = [
        drop
        for drop in all_drops(version.dataset_ref())
        if drop.line == wanted.line and wanted.of(drop.uri)
    ]
    places = list(find_documents(version, ids)) if ids else []
    facts = [_dropped(drop) for drop in drops]
    facts.append(
        f"{text}: placed {counted(len(places), 'time')}" if places else f"{text}: not placed"
    )
    missing = f"{gone} tables of the tokenize step are gone, which would tell more"
    if gone:
        facts.append(f"!{missing}")
    if not places and not drops:
        raise ConfigError(
            f"--at {text}: expected a record that was placed or dropped, found none. Check the "
            f"line, counted from 1{f'; {missing}' if gone else ''}."
        )
    return facts, single(dataset, places)


def _dropped(drop: Drop) -> str:
    return f"dropped: {place(drop)}: {drop.reason.value}: {drop.detail}".replace("\n", " ")


def _check_file(files: Mapping[str, str], wanted: Place, *, text: str) -> None:
    """Refuse a file that was not read, where the manifest knows the files."""
    if not files or any(wanted.of(uri) for uri in files):
        return
    more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    raise ConfigError(
        f"--at {text}: expected a file that the dataset was made from, found "
        f"{', '.join(sorted(files)[:_NAMED])}{more}."
    )


def _document_ids(parents: Mapping[str, str], wanted: Place) -> tuple[Sequence[str], int]:
    """Ids of the documents that came from a record, and how many tables are gone."""
    found: list[str] = []
    gone = 0
    for uri, digest in parents.items():
        try:
            table = read_version(uri)
        except MegapackError:
            gone += 1
            continue
        if table.manifest.digest != digest:
            gone += 1
        else:
            found += _ids_in(table, wanted)
    return sorted(set(found)), gone


def _ids_in(table: Committed, wanted: Place) -> Iterator[str]:
    reader = PartReader(open_location(table.uri))
    for part in table.manifest.parts_of(PartKind.DOCUMENTS):
        frame = reader.read(part, columns=("document_id", "uri", "line"))
        for document_id, uri, _ in frame.filter(pl.col("line") == wanted.line).iter_rows():
            if wanted.of(uri):
                yield document_id
