"""The first records of a source file, copied byte for byte into a file of the same kind.

For looking before reading everything: a sample goes through the same steps as the whole. Says how
much of the file the copy covers, measured in the file's own bytes, so that totals can be told from
it. Costs what is copied; an array is read whole.
"""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from megapack.errors import DataError
from megapack.store.source_excerpts import raw_lines, record_texts
from megapack.store.source_files import FileShape, SourceFile
from megapack.store.source_system import file_system, guarded

_SUFFIX = {
    FileShape.LINES: ".jsonl",
    FileShape.MERGED_LINES: ".jsonl.packed",
    FileShape.ARRAY: ".jsonl",
    FileShape.PARQUET: ".parquet",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What was copied.

    Attributes:
        path: the copy.
        records: records copied.
        share: bytes of the file that they stand for, over all its bytes; 1.0 for all of it.
    """

    path: Path
    records: int
    share: float


def copy_head(file: SourceFile, stem: Path, *, most: int) -> Head:
    """Copy the first records of a file.

    Args:
        file: a source file.
        stem: path of the copy without its suffix, in a folder that is there.
        most: records to copy.

    Raises:
        StoreError: the store failed.
        DataError: the file cannot be decompressed, or is no Parquet.
    """
    target = stem.with_name(stem.name + _SUFFIX[file.shape])
    if file.shape is FileShape.PARQUET:
        return _parquet(file, target, most=most)
    if file.shape is FileShape.ARRAY:
        return _array(file, target, most=most)
    return _lines(file, target, most=most)


def _lines(file: SourceFile, target: Path, *, most: int) -> Head:
    records = total = position = copied = 0
    with target.open("wb") as out:
        for line in raw_lines(file):
            blank = not line.data.strip()
            if records < most:
                out.write(line.data.removesuffix(b"\n") + b"\n")
                records += not blank
                copied, position = copied + len(line.data), line.position
            elif position < file.size:
                return Head(path=target, records=records, share=position / file.size)
            total += len(line.data)
    # All compressed bytes were read for what was copied: only the lines tell the share.
    return Head(path=target, records=records, share=copied / total if total else 1.0)


def _array(file: SourceFile, target: Path, *, most: int) -> Head:
    texts = [text for _, text in record_texts(file)]
    target.write_text("".join(f"{text}\n" for text in texts[:most]), encoding="utf-8")
    sizes = [len(text) for text in texts]
    share = sum(sizes[:most]) / sum(sizes) if texts else 1.0
    return Head(path=target, records=len(texts[:most]), share=share)


def _parquet(file: SourceFile, target: Path, *, most: int) -> Head:
    filesystem, path = file_system(file.uri)
    handle = guarded(lambda: filesystem.open(path, "rb"), action="read", uri=file.uri)
    with handle:
        try:
            total = pl.scan_parquet(handle).select(pl.len()).collect().item()
            handle.seek(0)
            head = pl.read_parquet(handle, n_rows=most)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataError(f"source file {file.uri}: expected Parquet: {error}.") from error
    head.write_parquet(target)
    return Head(path=target, records=head.height, share=head.height / total if total else 1.0)
