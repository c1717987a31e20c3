"""Peers of storing: packed rows written and read in the formats of other tools.

Each format holds all that a rank needs: tokens, the mask and the documents' lengths. `read` gives
back `TokenRow`s, so that bytes are compared only between formats that hold the same rows.
Formats raise ImportError from `write` and `read` when the peer is not there.
"""

import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from benchmarks.alone import import_alone
from benchmarks.inputs import TokenRow

_GROUP_TOKENS = 1 << 20


class RowFormat(Protocol):
    """A way to store packed rows."""

    @property
    def name(self) -> str:
        """As the table shows it."""

    def write(self, rows: Sequence[TokenRow], folder: Path) -> None:
        """Write all rows into an empty folder."""

    def read(self, folder: Path) -> Iterator[TokenRow]:
        """Read all rows in order."""


def stored_bytes(folder: Path) -> int:
    """Size of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class HuggingFaceArrow:
    """`datasets`: memory-mapped Arrow, uncompressed; read in its numpy format."""

    name = "datasets Arrow"

    def write(self, rows: Sequence[TokenRow], folder: Path) -> None:
        """Save a table of list columns of the narrowest types."""
        datasets = import_module("datasets")

        types = {"tokens": "int32", "mask": "uint8", "lengths": "int32"}
        features = {key: datasets.List(datasets.Value(value)) for key, value in types.items()}
        columns = {key: [getattr(row, key) for row in rows] for key in types}
        datasets.disable_progress_bars()
        table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        table.save_to_disk(str(folder))

    def read(self, folder: Path) -> Iterator[TokenRow]:
        """Rows as numpy arrays."""
        datasets = import_module("datasets")

        for row in datasets.load_from_disk(str(folder)).with_format("numpy"):
            yield TokenRow(row["tokens"], row["mask"], row["lengths"])


class MosaicShards:
    """mosaicml-streaming: MDS shards of ndarray columns, without compression as by default.

    Read with its shard reader, without the scheduling of `StreamingDataset`: that favours the peer.
    """

    name = "MosaicML MDS"
    _columns: ClassVar = {
        "tokens": "ndarray:int32",
        "mask": "ndarray:uint8",
        "lengths": "ndarray:int32",
    }

    def write(self, rows: Sequence[TokenRow], folder: Path) -> None:
        """Write with `MDSWriter`."""
        writer = import_alone("streaming.base.format.mds.writer")
        with writer.MDSWriter(out=str(folder), columns=self._columns) as out:
            for row in rows:
                out.write({key: getattr(row, key) for key in self._columns})

    def read(self, folder: Path) -> Iterator[TokenRow]:
        """Read with `MDSReader`, shard by shard."""
        reader = import_alone("streaming.base.format.mds.reader")
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        for shard in index["shards"]:
            samples = reader.MDSReader.from_json(str(folder), None, shard)
            for number in range(shard["samples"]):
                row = samples[number]
                yield TokenRow(row["tokens"], row["mask"], row["lengths"])


class MegatronIndexed:
    """megatron-core's `IndexedDataset`: .bin and .idx, one pair for tokens and one for the mask.

    A row is a document of the index and a document of the row a sequence, so lengths are in it.
    """

    name = "Megatron .bin"

    def write(self, rows: Sequence[TokenRow], folder: Path) -> None:
        """Write with `IndexedDatasetBuilder`."""
        from megatron.core.datasets import indexed_dataset

        for column, dtype in (("tokens", np.int32), ("mask", np.uint8)):
            stem = str(folder / column)
            builder = indexed_dataset.IndexedDatasetBuilder(f"{stem}.bin", dtype=dtype)
            for row in rows:
                builder.add_document(getattr(row, column), row.lengths.tolist())
            builder.finalize(f"{stem}.idx")

    def read(self, folder: Path) -> Iterator[TokenRow]:
        """Read a row as the sequences of a document."""
        from megatron.core.datasets import indexed_dataset

        tokens, mask = (
            indexed_dataset.IndexedDataset(str(folder / name)) for name in ("tokens", "mask")
        )
        ends = tokens.document_indices.tolist()
        for begin, end in pairwise(ends):
            pieces = tokens[begin:end]
            lengths = np.asarray([piece.size for piece in pieces], np.int32)
            yield TokenRow(np.concatenate(pieces), np.concatenate(mask[begin:end]), lengths)


class ParquetDefaults:
    """pyarrow's defaults: list columns, dictionary and snappy."""

    name = "pyarrow default"

    def write(self, rows: Sequence[TokenRow], folder: Path) -> None:
        """Write with `write_table` and its defaults, but for row groups of a million tokens."""
        pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")

        types = {"tokens": pa.int32(), "mask": pa.uint8(), "lengths": pa.int32()}
        columns: dict[str, Any] = {
            key: pa.array([getattr(row, key) for row in rows], pa.list_(kind))
            for key, kind in types.items()
        }
        size = max(1, _GROUP_TOKENS // rows[0].tokens.size)
        parquet.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=size)

    def read(self, folder: Path) -> Iterator[TokenRow]:
        """Read a row group at a time."""
        parquet = import_module("pyarrow.parquet")

        file = parquet.ParquetFile(folder / "rows.parquet")
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            columns = [table[key].combine_chunks() for key in ("tokens", "mask", "lengths")]
            for number in range(table.num_rows):
                arrays = [column[number].values.to_numpy() for column in columns]
                yield TokenRow(*arrays)


class PlainNumpy:
    """One .npy file a column, mapped into memory."""

    name = ".npy"

    def write(self, rows: Sequence[TokenRow], folder: Path) -> None:
        """Write the columns and the number of documents of each row."""
        for key in ("tokens", "mask", "lengths"):
            np.save(folder / f"{key}.npy", np.concatenate([getattr(row, key) for row in rows]))
        np.save(folder / "documents.npy", np.asarray([row.lengths.size for row in rows]))

    def read(self, folder: Path) -> Iterator[TokenRow]:
        """Views into the mapped files."""
        tokens, mask = (np.load(folder / f"{key}.npy", mmap_mode="r") for key in ("tokens", "mask"))
        lengths = np.load(folder / "lengths.npy")
        begin = first = 0
        for documents in np.load(folder / "documents.npy").tolist():
            own = lengths[first : first + documents]
            end = begin + int(own.sum())
            yield TokenRow(tokens[begin:end], mask[begin:end], own)
            begin, first = end, first + documents


FORMATS: tuple[RowFormat, ...] = (
    HuggingFaceArrow(),
    MosaicShards(),
    MegatronIndexed(),
    ParquetDefaults(),
    PlainNumpy(),
)
