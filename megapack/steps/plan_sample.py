"""The first records of every source as a job of its own, in a folder that is thrown away.

What is told from it goes through the same steps as the whole. Records are taken from the head of
each file, in proportion to the sizes of a source's files; what one does not have, others give.
A file that must give more is copied anew, which costs its head once more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megapack.jobs.prepare import PrepareJob, Source
from megapack.store.source_files import SourceFile, list_files
from megapack.store.source_heads import Head, copy_head

_MOST_FILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What is known of a source.

    Attributes:
        source: its name.
        files: number of its files.
        files_read: number of those that were looked at.
        num_bytes: bytes of all its files.
        records: records that were taken.
        share: bytes that these stand for, over all bytes.
    """

    source: str
    files: int
    files_read: int
    num_bytes: int
    records: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A job over copies.

    Attributes:
        job: the job; its sources are called as those of the job that is planned.
        bases: what the copies stand for, by source.
        originals: address of the file that each copy was made from.
    """

    job: PrepareJob
    bases: tuple[Basis, ...]
    originals: Mapping[str, str]


def whole(job: PrepareJob) -> tuple[Basis, ...]:
    """The bases when nothing is left out, before records are counted.

    Raises:
        ConfigError: a source has no files.
        StoreError: the store failed.
    """
    return tuple(
        _basis(source, files := list_files(source.uri), files=files, heads=None)
        for source in job.sources
    )


def sample(job: PrepareJob, folder: Path, *, records: int) -> Sample:
    """Copy the heads of all sources into a folder.

    Args:
        job: the job to plan.
        folder: where the copies go.
        records: at most so many of each source.

    Raises:
        ConfigError: a source has no files.
        StoreError: the store failed.
        DataError: a file cannot be decompressed.
    """
    sources, bases = [], []
    originals: dict[str, str] = {}
    for number, source in enumerate(job.sources):
        own = folder / f"source-{number:03d}"
        own.mkdir()
        files = list_files(source.uri)
        chosen = _spread(files)
        heads = _heads(chosen, own, records=records)
        originals |= {str(head.path): file.uri for head, file in zip(heads, chosen, strict=True)}
        bases.append(_basis(source, chosen, files=files, heads=heads))
        update = {"uri": str(own), "name": _name(source)}
        sources.append(source.model_copy(update=update))
    small = job.model_copy(update={"sources": tuple(sources)})
    return Sample(job=small, bases=tuple(bases), originals=originals)


def _heads(chosen: Sequence[SourceFile], folder: Path, *, records: int) -> list[Head]:
    """A head of every file; all records of all files, when they hold no more than asked for."""
    asked = [0] * len(chosen)
    heads: dict[int, Head] = {}
    unfinished, left = list(range(len(chosen))), records
    while unfinished and left > 0:
        total = sum(chosen[at].size for at in unfinished)
        for at in unfinished:
            asked[at] += _part(left, chosen[at].size, total=total)
            heads[at] = copy_head(chosen[at], folder / f"{at:03d}", most=asked[at])
        unfinished = [at for at in unfinished if heads[at].share < 1.0]
        left = records - sum(head.records for head in heads.values())
    return [heads[at] for at in range(len(chosen))]


def _part(records: int, size: int, *, total: int) -> int:
    """A file's part of the records, by its size; at least one."""
    return max(1, round(records * size / max(1, total)))


def _basis(
    source: Source,
    chosen: tuple[SourceFile, ...],
    *,
    files: tuple[SourceFile, ...],
    heads: list[Head] | None,
) -> Basis:
    total = sum(file.size for file in files)
    share, records = 1.0, 0
    if heads is not None:
        read = sum(head.share * file.size for head, file in zip(heads, chosen, strict=True))
        share, records = read / total if total else 1.0, sum(head.records for head in heads)
    return Basis(
        source=_name(source),
        files=len(files),
        files_read=len(chosen),
        num_bytes=total,
        records=records,
        share=share,
    )


def _name(source: Source) -> str:
    return source.name or source.uri


def _spread(files: tuple[SourceFile, ...]) -> tuple[SourceFile, ...]:
    """At most 64 files, spread over all of them."""
    step = max(1, -(-len(files) // _MOST_FILES))
    return files[::step]
