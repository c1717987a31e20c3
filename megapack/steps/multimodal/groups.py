"""Reading the groups of a multimodal job: samples without pixels, one after another.

What a record holds never ends a stream: an unfit one is handed out as a reject. Only a store that
fails and a file that is damaged or has changed do.
"""

from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from megapack.errors import ConfigError, DataError
from megapack.jobs.multimodal import MultimodalJob, SampleGroup
from megapack.multimodal.draws import DrawPurpose, sample_generator
from megapack.multimodal.rejected import RejectedError
from megapack.records.multimodal_sample import Sample, SampleRef
from megapack.records.rejects import RejectReason, SampleReject
from megapack.records.shard import Shard
from megapack.steps.multimodal.block_reader import BlockReader
from megapack.steps.multimodal.catalogue import Catalogue, columns_of, list_records
from megapack.steps.multimodal.identity import identity_of
from megapack.steps.multimodal.making import converter_of, most_characters
from megapack.steps.multimodal.record_order import OrderKey, RecordOrder, stretch
from megapack.steps.multimodal.tokenizer import MultimodalTokenizer


class GroupCursor(BaseModel):
    """Where a reader stands: before the record at `position` of its stretch.

    Attributes:
        reading: from 0; the number of readings at the end.
        position: from 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reading: int = Field(default=0, ge=0)
    position: int = Field(default=0, ge=0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnSample:
    """One record that was read.

    Attributes:
        ref: which.
        outcome: what it became.
    """

    ref: SampleRef
    outcome: Sample | SampleReject


class OpenGroup:
    """A group whose records are listed; the same on every rank."""

    def __init__(
        self,
        group: SampleGroup,
        job: MultimodalJob,
        tokenizer: MultimodalTokenizer,
        catalogue: Catalogue,
    ) -> None:
        self.group = group
        self.catalogue = catalogue
        self.most_characters = most_characters(job.limits.max_sample_tokens)
        self._seed = job.seed
        self._tokenizer = tokenizer

    @property
    def num_samples(self) -> int:
        """Records of one reading, over all workers."""
        return self.catalogue.num_records

    @property
    def digest(self) -> str:
        """64 hex digits: which records there are, by name and number, not what they hold."""
        return self.catalogue.digest

    def identity(self) -> list[list[object]]:
        """JSON that changes when a file or an image of the group does; lists folders anew.

        Raises:
            StoreError: the store failed.
        """
        return identity_of(self.group, self.catalogue)

    def reader(self, shard: Shard, epoch: int) -> "GroupReader":
        """Reads the records of one worker.

        Raises:
            ConfigError: there are fewer records than workers.
        """
        return GroupReader(self, self._tokenizer, shard=shard, seed=self._seed, epoch=epoch)


class GroupReader:
    """Reads the records of one worker, in the order of the epoch."""

    def __init__(
        self,
        opened: OpenGroup,
        tokenizer: MultimodalTokenizer,
        *,
        shard: Shard,
        seed: int,
        epoch: int,
    ) -> None:
        self._group = opened.group
        self._catalogue = opened.catalogue
        self._stretch = stretch(opened.num_samples, shard, group=opened.group.name)
        self._seed, self._epoch = seed, epoch
        self._convert = converter_of(
            opened.group, tokenizer.encode, most_characters=opened.most_characters
        )
        self._blocks = BlockReader(opened.catalogue, columns_of(opened.group))
        self._cursor = GroupCursor()
        self._order = self._order_of(0)

    def next(self) -> DrawnSample | None:
        """The next record; None when all readings are done.

        Raises:
            DataError: a file is damaged or has changed.
            StoreError: the store failed.
        """
        reading, position = self._cursor.reading, self._cursor.position
        if reading == self._group.readings:
            return None
        block, at = self._order.place(self._stretch[position])
        drawn = self._draw(block, at, reading)
        self.seek(
            GroupCursor(reading=reading, position=position + 1)
            if position + 1 < len(self._stretch)
            else GroupCursor(reading=reading + 1)
        )
        return drawn

    def cursor(self) -> GroupCursor:
        """Where the reader stands."""
        return self._cursor

    def seek(self, cursor: GroupCursor) -> None:
        """Go on from a cursor of the same group, epoch and worker.

        Raises:
            ConfigError: there is no such place.
        """
        readings = self._group.readings
        at_end = cursor == GroupCursor(reading=readings) if readings is not None else False
        within = readings is None or cursor.reading < readings
        if not at_end and not (within and cursor.position < len(self._stretch)):
            raise ConfigError(
                f"group {self._group.name}: expected a place within {readings} readings of "
                f"{len(self._stretch)} records, found reading {cursor.reading}, position "
                f"{cursor.position}. The state is of other data or other workers."
            )
        if cursor.reading != self._cursor.reading:
            self._order = self._order_of(cursor.reading)
        self._cursor = cursor

    def fetch(self, ref: SampleRef) -> Sample:
        """A sample again, equal to what `next` gave; the reader stays where it stands.

        Raises:
            DataError: there is no such record, or it has changed and is unfit now.
            StoreError: the store failed.
        """
        block, at = self._blocks.find(ref)
        outcome = self._draw(block, at, ref.reading).outcome
        if isinstance(outcome, SampleReject):
            raise DataError(
                f"group {ref.group}, source {ref.source}, {ref.file}, row {ref.row}: expected the "
                f"sample that was read before, found one that is left out: {outcome.detail} The "
                "data has changed; start again."
            )
        return outcome

    def _order_of(self, reading: int) -> RecordOrder:
        key = OrderKey(seed=self._seed, epoch=self._epoch, group=self._group.name, reading=reading)
        return RecordOrder(self._catalogue.units, self._catalogue.sizes, key)

    def _draw(self, block: int, at: int, reading: int) -> DrawnSample:
        read = self._blocks.read(block)
        file = self._blocks.file_of(block)
        ref = SampleRef(
            group=self._group.name,
            source=file.source.name,
            file=file.file.name,
            row=int(read.rows[at]),
            reading=reading,
        )
        try:
            record = read.record(at)
        except DataError as error:
            reject = SampleReject(reason=RejectReason.UNREADABLE_RECORD, detail=str(error))
            return DrawnSample(ref=ref, outcome=reject)
        generator = self._generator(ref)
        try:
            made = self._convert(record, self._blocks.images_of(block), generator)
        except RejectedError as error:
            return DrawnSample(ref=ref, outcome=error.reject)
        sample = Sample(ref=ref, items=made.items, encoded=made.encoded)
        return DrawnSample(ref=ref, outcome=sample)

    def _generator(self, ref: SampleRef) -> np.random.Generator:
        return sample_generator(self._seed, self._epoch, ref, DrawPurpose.CONTENT)


def open_group(group: SampleGroup, job: MultimodalJob, tokenizer: MultimodalTokenizer) -> OpenGroup:
    """List and count the records of a group; the same on every rank.

    Parquet files are known by their footers; JSONL files are read once.

    Raises:
        ConfigError: a source has no files or no records.
        DataError: a file cannot be read, lacks a column, or is not what the metadata says.
        StoreError: the store failed.
    """
    return OpenGroup(group, job, tokenizer, list_records(group))
