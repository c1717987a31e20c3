"""Files of a group and the blocks of their records, listed and counted once.

Letters: F files of all sources, B blocks of all files.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megapack.errors import ConfigError
from megapack.jobs.multimodal import GroupKind, SampleGroup, SampleSource
from megapack.records.digest import digest_of
from megapack.store.image_folder import check_folder
from megapack.store.line_records import line_blocks
from megapack.store.parquet_records import parquet_blocks
from megapack.store.record_blocks import FileBlocks
from megapack.store.sample_files import SampleFile, check_metadata, list_samples, read_metadata

_LOG = logging.getLogger(__name__)
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordFile:
    """One file of a group.

    Attributes:
        source: which source it belongs to.
        file: name and place.
        blocks: of its records.
    """

    source: SampleSource
    file: SampleFile
    blocks: FileBlocks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Catalogue:
    """All records of a group. In the order of sources, files, rows.

    Attributes:
        files: F.
        block_files: int64 [B], the file of each block.
        block_numbers: int64 [B], its number in its file.
        units: int64 [B], ascending without gaps: its unit, over all files.
        sizes: int64 [B], its records, at least 1; those beyond `max_samples` do not count.
    """

    files: tuple[RecordFile, ...]
    block_files: Int64
    block_numbers: Int64
    units: Int64
    sizes: Int64

    @property
    def num_records(self) -> int:
        """Records of all files."""
        return int(self.sizes.sum())

    @property
    def digest(self) -> str:
        """64 hex digits over names of files and where their records stand, not over contents."""
        files = [
            [one.source.name, one.file.name, one.blocks.first_rows.tolist()] for one in self.files
        ]
        return digest_of([files, self.block_numbers.tolist(), self.sizes.tolist()])


def list_records(group: SampleGroup) -> Catalogue:
    """List and count the records of a group.

    Raises:
        ConfigError: a source has no files, no records, or no folder of images.
        DataError: a file cannot be read, lacks a column, or is not what the metadata says.
        StoreError: the store failed.
    """
    files: list[RecordFile] = []
    columns: list[tuple[Int64, Int64, Int64, Int64]] = []
    num_units = 0
    for source in group.sources:
        found = _source_files(group, source)
        left = source.max_samples
        for one in found:
            sizes = _front(one.blocks.sizes, left)
            left = left if left is None else left - int(sizes.sum())
            numbers = np.arange(sizes.size)
            units = np.unique(one.blocks.units[: sizes.size], return_inverse=True)[1]
            places = np.full(sizes.size, len(files))
            columns.append((places, numbers, units + num_units, sizes))
            num_units += int(units[-1]) + 1 if units.size else 0
            files.append(one)
    block_files, block_numbers, units, sizes = map(np.concatenate, zip(*columns, strict=True))
    catalogue = Catalogue(
        files=tuple(files),
        block_files=block_files,
        block_numbers=block_numbers,
        units=units,
        sizes=sizes,
    )
    _LOG.info(
        "group listed name=%s files=%d records=%d", group.name, len(files), catalogue.num_records
    )
    return catalogue


def columns_of(group: SampleGroup) -> tuple[str, str]:
    """Columns of the images and of the texts of a group of Parquet files."""
    image, text = {
        GroupKind.TEXT_TO_IMAGE: ("image", "captions"),
        GroupKind.UNDERSTANDING: ("image", "conversations"),
        GroupKind.EDITING: ("image_list", "instruction_list"),
    }[group.kind]
    return group.image_field or image, group.text_field or text


def _source_files(group: SampleGroup, source: SampleSource) -> Sequence[RecordFile]:
    lines = group.kind is GroupKind.UNDERSTANDING
    if lines and source.images:
        check_folder(source.images)
    found = [
        RecordFile(
            source=source,
            file=file,
            blocks=line_blocks(file.stored.uri)
            if lines
            else parquet_blocks(file.stored.uri, columns_of(group)),
        )
        for file in list_samples(source.uri, ".jsonl" if lines else ".parquet")
    ]
    if source.metadata:
        row_groups = {one.file: one.blocks.row_groups for one in found}
        metadata = read_metadata(source.metadata)
        check_metadata(metadata, row_groups, source=source.uri, uri=source.metadata)
    if not any(one.blocks.num_records for one in found):
        raise ConfigError(
            f"group {group.name}, source {source.uri}: expected records, found {len(found)} files "
            "without any. Check the files, or leave the source out."
        )
    return found


def _front(sizes: Int64, most: int | None) -> Int64:
    """Sizes of the blocks at the front that hold `most` records."""
    if most is None:
        return sizes
    before = np.cumsum(sizes) - sizes
    front: Int64 = np.minimum(sizes, most - before)[before < most]
    return front
