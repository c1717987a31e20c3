"""Reads blocks of a catalogue; the one read last is kept."""

import numpy as np

from megapack.errors import DataError
from megapack.multimodal.draft import ImageFiles
from megapack.records.multimodal_sample import SampleRef
from megapack.steps.multimodal.catalogue import Catalogue, RecordFile
from megapack.store.image_folder import ImageFolder
from megapack.store.line_records import LineRecords
from megapack.store.parquet_records import ParquetRecords
from megapack.store.record_blocks import RecordBlock


class BlockReader:
    """One at a time; nothing is open between two blocks but a very large row group."""

    def __init__(self, catalogue: Catalogue, columns: tuple[str, str]) -> None:
        self._catalogue = catalogue
        self._columns = columns
        self._kept: tuple[int, RecordBlock] | None = None
        self._file: tuple[int, ParquetRecords | LineRecords] | None = None
        self._folders: dict[str, ImageFolder] = {}

    def file_of(self, block: int) -> RecordFile:
        """The file of a block."""
        return self._catalogue.files[int(self._catalogue.block_files[block])]

    def read(self, block: int) -> RecordBlock:
        """A block.

        Raises:
            DataError: its file is damaged or has changed.
            StoreError: the store failed.
        """
        if self._kept is None or self._kept[0] != block:
            self._kept = None
            number = int(self._catalogue.block_numbers[block])
            self._kept = (block, self._records(block).read(number))
        return self._kept[1]

    def images_of(self, block: int) -> ImageFiles:
        """Where the paths in the records of a block lead."""
        uri = images_folder(self.file_of(block))
        if uri not in self._folders:
            self._folders[uri] = ImageFolder(uri)
        return self._folders[uri]

    def find(self, ref: SampleRef) -> tuple[int, int]:
        """Block of a record, and its number there.

        Raises:
            DataError: there is none.
            StoreError: the store failed.
        """
        for number, file in enumerate(self._catalogue.files):
            if (file.source.name, file.file.name) == (ref.source, ref.file):
                blocks = np.flatnonzero(self._catalogue.block_files == number)
                firsts = file.blocks.first_rows[: blocks.size]
                place = int(np.searchsorted(firsts, ref.row, side="right")) - 1
                block = int(blocks[place]) if place >= 0 else -1
                rows = self.read(block).rows if place >= 0 else np.zeros(0, dtype=np.int64)
                at = int(np.searchsorted(rows, ref.row))
                if place >= 0 and at < self._catalogue.sizes[block] and rows[at] == ref.row:
                    return block, at
        raise DataError(
            f"group {ref.group}: expected row {ref.row} of {ref.file} in source {ref.source}, "
            "found none. The data has changed since the state was taken; start again."
        )

    def _records(self, block: int) -> ParquetRecords | LineRecords:
        number = int(self._catalogue.block_files[block])
        if self._file is None or self._file[0] != number:
            file = self._catalogue.files[number]
            uri, blocks = file.file.stored.uri, file.blocks
            lines = uri.lower().endswith(".jsonl")
            self._file = (
                number,
                LineRecords(uri, blocks) if lines else ParquetRecords(uri, blocks, self._columns),
            )
        return self._file[1]


def images_folder(file: RecordFile) -> str:
    """The folder of the images that the records of a file name."""
    return file.source.images or file.file.stored.uri.rpartition("/")[0]
