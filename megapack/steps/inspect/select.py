"""Which documents are looked at: whole rows, one by its id, or a seeded sample.

Costs the lengths of all rows for a sample, the document ids of all rows for a search, and the row
groups that hold what was chosen.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from megapack.errors import ConfigError, MegapackError
from megapack.layout.runs import Int64
from megapack.steps.inspect.shown import (
    Group,
    place_of,
    segment_of_row,
    shown_document,
    with_places,
)
from megapack.steps.row_columns import find_documents, geometry, title_of
from megapack.steps.wording import counted
from megapack.store.committed import Committed
from megapack.store.document_frames import frame_to_documents
from megapack.store.location import open_location
from megapack.store.manifest import PartKind, Split
from megapack.store.part_reader import PartReader
from megapack.store.reader import PackedDataset
from megapack.store.versions import read_version

_FEWEST_DIGITS = 6
_MOST_MATCHES = 100
_MOST_TABLES = 128
_PLACE_COLUMNS = ("document_id", "uri", "line")


def rows(dataset: PackedDataset, split: Split, numbers: Sequence[int]) -> Iterator[Group]:
    """Whole rows, by number inside a split.

    Raises:
        ConfigError: there is no such row.
        StoreError: the store failed.
    """
    for number, row in zip(numbers, dataset.rows(split, numbers), strict=True):
        documents = tuple(segment_of_row(row, at) for at in range(row.layout.num_segments))
        yield Group(title=title_of(row, split=split, number=number), documents=documents)


def sample(
    dataset: PackedDataset, split: Split, *, count: int, seed: int, source: str | None = None
) -> Iterator[Group]:
    """Documents drawn evenly from a split, in stored order: equal seeds draw equal documents.

    Args:
        dataset: where.
        split: side of the split.
        count: at most so many.
        seed: of the draw.
        source: name of the source to draw from, all of them when None.

    Raises:
        ConfigError: the split has no rows, or none of the source.
        StoreError: the store failed.
    """
    numbers = dataset.index(split)["lengths"].list.len().to_numpy().astype(np.int64)
    ends = np.cumsum(numbers)
    if source is None:
        drawn = _draw(int(ends[-1]), count=count, seed=seed)
    else:
        own = _of_source(dataset.committed, split, source)
        drawn = own[_draw(own.size, count=count, seed=seed)]
    chosen = np.searchsorted(ends, drawn, side="right")
    segments = drawn - (ends - numbers)[chosen]
    places = [(split, int(row), int(at)) for row, at in zip(chosen, segments, strict=True)]
    yield from single(dataset, places)


def by_id(dataset: PackedDataset, document_id: str) -> Iterator[Group]:
    """Every placed document whose id begins like this, in any split.

    Raises:
        ConfigError: too few digits to mean one document, or there is none.
        StoreError: the store failed.
    """
    if len(document_id) < _FEWEST_DIGITS:
        raise ConfigError(
            f"--document {document_id!r}: expected at least {_FEWEST_DIGITS} digits of an id."
        )
    places = []
    for place in find_documents(dataset.committed, [document_id]):
        places.append(place)
        if len(places) == _MOST_MATCHES:
            break
    if not places:
        raise ConfigError(
            f"{dataset.committed.uri} version {dataset.committed.version}: expected a document "
            f"whose id begins with {document_id!r}, found none. It may have been dropped: see "
            "megapack report --drops."
        )
    yield from single(dataset, places)


def table(version: Committed, *, count: int, seed: int) -> Iterator[Group]:
    """A sample of the documents of a tokenize step's table.

    Raises:
        ConfigError: the version holds no documents.
        StoreError: the store failed.
    """
    parts = version.manifest.parts_of(PartKind.DOCUMENTS)
    ends = np.cumsum([part.num_records for part in parts])
    if not parts:
        raise ConfigError(
            f"{version.uri} version {version.version}: expected packed rows or documents, found a "
            f"version of kind {version.manifest.kind!r}. Name a dataset, or a table of the "
            "tokenize step."
        )
    reader = PartReader(open_location(version.uri))
    for number in _draw(int(ends[-1]), count=count, seed=seed).tolist():
        at = int(np.searchsorted(ends, number, side="right"))
        offset = number - int(ends[at]) + parts[at].num_records
        frame = reader.read(parts[at], rows=(offset, 1))
        where = f"{version.uri}/{parts[at].key} record {offset}"
        documents = tuple(shown_document(one) for one in frame_to_documents(frame, where=where))
        yield Group(title=f"document {number} of {int(ends[-1]):,}", documents=documents)


def placed(groups: Iterator[Group], version: Committed) -> Iterator[Group]:
    """The groups with files and lines, where the tables of the tokenize step still stand.

    All groups are read before the first comes out. Not looked up in more than 128 tables.
    """
    held = list(groups)
    wanted = {document.document_id for group in held for document in group.documents}
    repeated = bool(version.manifest.counts.get("documents_repeated"))
    places = _places(version.manifest.parents, wanted, repeated=repeated)
    for group in held:
        yield with_places(group, places)


def single(dataset: PackedDataset, places: Sequence[tuple[Split, int, int]]) -> Iterator[Group]:
    """Documents by split, row and segment, each under a heading of its own.

    Raises:
        StoreError: the store failed.
    """
    for split, number, segment in places:
        (row,) = dataset.rows(split, [number])
        title = f"document {segment} in {title_of(row, split=split, number=number)}"
        yield Group(title=title, documents=(segment_of_row(row, segment),))


def _of_source(version: Committed, split: Split, source: str) -> Int64:
    """int64: numbers of a source's documents inside a split, ascending."""
    frames = [frame for part, frame in geometry(version) if part.split is split]
    names = pl.concat([frame["sources"].explode(empty_as_null=False) for frame in frames])
    own = np.flatnonzero((names == source).to_numpy()).astype(np.int64)
    if not own.size:
        known = ", ".join(sorted(names.unique())) or "none"
        raise ConfigError(
            f"--source {source!r}: expected a source with documents in {split.value}, found "
            f"{known}."
        )
    return own


def _draw(total: int, *, count: int, seed: int) -> Int64:
    generator = np.random.Generator(np.random.Philox(seed))
    drawn = generator.choice(total, size=min(count, total), replace=False)
    return np.sort(drawn).astype(np.int64)


def _places(parents: Mapping[str, str], wanted: set[str], *, repeated: bool) -> dict[str, str]:
    """File and line by document id; a table that is gone or was made anew tells nothing.

    Equal documents have one id: where some are repeated, all tables are asked, and all places of
    an id are told with each of its copies.
    """
    found: dict[str, list[str]] = {}
    if len(parents) > _MOST_TABLES:
        return {}
    for uri, digest in parents.items():
        if len(found) == len(wanted) and not repeated:
            break
        try:
            for name, place in _places_in(uri, digest, wanted):
                found.setdefault(name, []).append(place)
        except MegapackError:
            continue
    return {name: _told(places) for name, places in found.items()}


def _told(places: Sequence[str]) -> str:
    others = len(places) - 1
    return f"{places[0]} and {counted(others, 'more place')}" if others else places[0]


def _places_in(uri: str, digest: str, wanted: set[str]) -> list[tuple[str, str]]:
    version = read_version(uri)
    if version.manifest.digest != digest:
        return []
    reader = PartReader(open_location(uri))
    found: list[tuple[str, str]] = []
    for part in version.manifest.parts_of(PartKind.DOCUMENTS):
        frame = reader.read(part, columns=_PLACE_COLUMNS)
        hits = frame.filter(frame["document_id"].is_in(list(wanted)))
        found += [(name, place_of(file, line)) for name, file, line in hits.iter_rows()]
    return found
