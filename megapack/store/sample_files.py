"""Which files hold the samples of a source, and whether its metadata is about them.

Hidden and bookkeeping files are skipped, and files of another kind are named in the log. Order is
by path.
"""

import difflib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsspec.implementations.local import LocalFileSystem

from megapack.errors import ConfigError, DataError
from megapack.store.source_files import SourceFile, check_regular, source_file
from megapack.store.source_listing import find_files
from megapack.store.source_system import file_system, guarded

_LOG = logging.getLogger(__name__)
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFile:
    """One file of a source.

    Attributes:
        name: path relative to the source's address.
        stored: where it is, and what tells that it changed.
    """

    name: str
    stored: SourceFile


def list_samples(uri: str, suffix: str) -> tuple[SampleFile, ...]:
    """Files of a source whose names end in `suffix`, by path.

    Args:
        uri: file, folder, glob or prefix, local or `s3://`.
        suffix: with its dot, in lower case.

    Raises:
        ConfigError: there are none, the scheme is unknown, one is compressed or is no regular file.
        StoreError: the store failed or refused.
    """
    listing = find_files(uri)
    files, others = [], []
    for path, info in listing.files.items():
        name, full = listing.relative(path), listing.uri_of(path)
        _check_plain(name, suffix, uri=uri)
        if not name.lower().endswith(suffix):
            others.append(name)
            continue
        if isinstance(listing.filesystem, LocalFileSystem):
            check_regular(full)
        stored = source_file(listing.filesystem, full, info)
        files.append(SampleFile(name=name, stored=stored))
    if not files:
        found = f"{len(others)} others such as {others[:_SHOWN]}" if others else listing.nothing
        raise ConfigError(
            f"source {uri}: expected files that end in {suffix}, found {found}. Check the path, "
            "the kind of the group and, for s3://, AWS_ENDPOINT_URL."
        )
    if others:
        _LOG.info("files skipped source=%s count=%d first=%s", uri, len(others), others[:_SHOWN])
    return tuple(sorted(files, key=lambda file: file.name))


def _check_plain(name: str, suffix: str, *, uri: str) -> None:
    lower = name.lower()
    if any(lower.endswith(f"{suffix}{ending}") for ending in _COMPRESSED):
        raise ConfigError(
            f"source {uri}: expected {suffix} files that can be read from any place, found the "
            f"compressed {name}. Decompress it, or name the files to read with a glob."
        )


def read_metadata(uri: str) -> Mapping[str, int]:
    """Row groups of each Parquet file, by path, as a metadata file says it.

    Args:
        uri: JSON `{path: {"num_row_groups": n}}`; other fields of an entry are ignored.

    Raises:
        ConfigError: there is no such file.
        DataError: it holds something else.
        StoreError: the store failed.
    """
    filesystem, path = file_system(uri)
    if not guarded(lambda: filesystem.isfile(path), action="look at", uri=uri):
        raise ConfigError(f"metadata {uri}: expected a JSON file, found none. Check the path.")
    data: bytes = guarded(lambda: filesystem.cat_file(path), action="read", uri=uri)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"metadata {uri}: expected JSON, found {error}.") from error
    if not isinstance(value, dict):
        raise DataError(
            f"metadata {uri}: expected an object of paths, found {type(value).__name__}."
        )
    return {name: _row_groups(name, entry, uri=uri) for name, entry in value.items()}


def _row_groups(name: str, entry: object, *, uri: str) -> int:
    count = entry.get("num_row_groups") if isinstance(entry, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise DataError(
            f'metadata {uri}, entry {name!r}: expected {{"num_row_groups": n}}, found '
            f"{str(entry)[:100]}."
        )
    return count


def check_metadata(
    metadata: Mapping[str, int], row_groups: Mapping[SampleFile, int], *, source: str, uri: str
) -> None:
    """Check that each entry is about a file of the source, and true. Files without one are read.

    Args:
        metadata: row groups by full address (absolute, or as the source's is written), path
            relative to the source, or base name.
        row_groups: what the files hold.
        source: address of the source as the job says it.
        uri: of the metadata, for messages.

    Raises:
        DataError: an entry matches no file, several files, or a file with another count.
    """
    for entry, claimed in metadata.items():
        matches = [file for file in row_groups if entry in _names(file, source)]
        if len(matches) != 1:
            known = [name for file in row_groups for name in _names(file, source)]
            raise DataError(_no_match(entry, matches, known, uri=uri))
        if (found := row_groups[matches[0]]) != claimed:
            raise DataError(
                f"metadata {uri}, entry {entry!r}: expected {claimed} row groups in "
                f"{matches[0].stored.uri}, found {found}. Write the metadata anew, or restore the "
                "file."
            )


def _names(file: SampleFile, source: str) -> tuple[str, ...]:
    """How an entry may call a file; a source that is one file is called by its address."""
    names = (file.stored.uri, f"{source.rstrip('/')}/{file.name}", file.name)
    alone = (source,) if source.endswith(f"/{file.name}") else ()
    return (*names, file.name.rsplit("/", 1)[-1], *alone)


def _no_match(entry: str, matches: Sequence[SampleFile], known: Sequence[str], *, uri: str) -> str:
    if matches:
        names = [file.name for file in matches[:_SHOWN]]
        return (
            f"metadata {uri}, entry {entry!r}: expected one file of that name, found "
            f"{len(matches)}: {names}. Name it by its path relative to the source."
        )
    near = difflib.get_close_matches(entry, known, n=1, cutoff=0.0)
    return (
        f"metadata {uri}, entry {entry!r}: expected a file of the source, found none of that name; "
        f"the nearest is {near[0]!r}. Correct or remove the entry."
    )
