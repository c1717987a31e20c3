"""The first records of every source as a job of its own, in a folder that is thrown away.

What is told from it goes through the same steps as the whole. Records are taken from the head of
each file, in proportion to the sizes of a source's files.
"""

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


def sample(job: PrepareJob, folder: Path, *, records: int) -> tuple[PrepareJob, tuple[Basis, ...]]:
    """Copy the heads of all sources into a folder.

    Args:
        job: the job to plan.
        folder: where the copies go.
        records: at most so many of each source.

    Returns:
        The job over the copies, its sources called as those of the job; what each stands for.

    Raises:
        ConfigError: a source has no files.
        StoreError: the store failed.
        DataError: a file cannot be decompressed.
    """
    sources, bases = [], []
    for number, source in enumerate(job.sources):
        own = folder / f"source-{number:03d}"
        own.mkdir()
        files = list_files(source.uri)
        chosen = _spread(files)
        total = sum(file.size for file in chosen)
        heads = [
            copy_head(
                file,
                own,
                name=f"{at:03d}",
                most=max(1, round(records * file.size / max(1, total))),
            )
            for at, file in enumerate(chosen)
        ]
        bases.append(_basis(source, chosen, files=files, heads=heads))
        update = {"uri": str(own), "name": _name(source)}
        sources.append(source.model_copy(update=update))
    return job.model_copy(update={"sources": tuple(sources)}), tuple(bases)


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
