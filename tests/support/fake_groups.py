"""Groups in memory for the stream's tests: texts of given lengths, and records that are no good."""

from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np

from megapack.jobs.multimodal import GroupKind, MultimodalJob, SampleGroup, SampleSource
from megapack.multimodal.config import ImageTransform
from megapack.packing.row_limits import RowLimits
from megapack.records.digest import digest_of
from megapack.records.multimodal_sample import PlanItem, Sample, SampleRef, SpanKind
from megapack.records.rejects import RejectReason, SampleReject
from megapack.records.shard import Shard
from megapack.steps.multimodal.groups import DrawnSample, GroupCursor
from tests.support.multimodal_samples import SPECIAL

BAD = 0
"""Length of a record that its group leaves out."""


class FakeTokenizer:
    special = SPECIAL
    vocab_size = 2000
    digest = "d" * 64


@dataclass
class FakeGroup:
    """`lengths[row]` tokens of each record, delimiters included; `BAD` is left out."""

    name: str
    lengths: list[int]
    readings: int | None
    seed: int

    @property
    def num_samples(self):
        return len(self.lengths)

    @property
    def digest(self):
        return digest_of(len(self.lengths))

    def reader(self, shard, epoch):
        return FakeReader(self, shard, epoch)


class FakeReader:
    def __init__(self, group, shard, epoch):
        self.group, self.shard, self.epoch = group, shard, epoch
        self.at = GroupCursor()

    def next(self):
        if self.at.reading == self.group.readings:
            return None
        mine = self._mine(self.at.reading)
        if not mine:
            self.at = GroupCursor(reading=self.group.readings)
            return None
        drawn = self._drawn(mine[self.at.position], self.at.reading)
        at_end = self.at.position + 1 == len(mine)
        self.at = GroupCursor(
            reading=self.at.reading + at_end, position=0 if at_end else self.at.position + 1
        )
        return drawn

    def cursor(self):
        return self.at

    def seek(self, cursor):
        self.at = cursor

    def fetch(self, ref):
        return self._drawn(ref.row, ref.reading).outcome

    def _mine(self, reading):
        """This worker's part of the records, shuffled before they are dealt out."""
        number = len(self.group.lengths)
        order = np.random.default_rng([self.group.seed, self.epoch, reading]).permutation(number)
        index, count = self.shard.index, self.shard.count
        return order[index * number // count : (index + 1) * number // count].tolist()

    def _drawn(self, row, reading):
        ref = SampleRef(
            group=self.group.name, source="main", file="memory", row=row, reading=reading
        )
        length = self.group.lengths[row]
        if length == BAD:
            reject = SampleReject(reason=RejectReason.NO_TEXT, detail=f"record {row}: no text")
            return DrawnSample(ref=ref, outcome=reject)
        text = np.full(length - 2, row, dtype=np.int32)
        item = PlanItem(kind=SpanKind.TEXT, text=text, loss=True)
        return DrawnSample(ref=ref, outcome=Sample(ref=ref, items=(item,)))


def fake_job(groups, limits=None, *, seed=0, readings=1, mandatory=(), weights=None):
    """A job of groups; their lengths are given to `in_memory`."""
    transform = ImageTransform(stride=16, max_size=64, min_size=16)
    return MultimodalJob(
        groups=tuple(
            SampleGroup(
                name=name,
                kind=GroupKind.TEXT_TO_IMAGE,
                sources=(SampleSource(uri="memory"),),
                vae=transform,
                readings=readings[name] if isinstance(readings, dict) else readings,
                mandatory=name in mandatory,
                weight=(weights or {}).get(name, 1.0),
            )
            for name in groups
        ),
        tokenizer="memory",
        limits=limits or RowLimits(),
        seed=seed,
    )


@contextmanager
def in_memory(groups):
    """Streams made within read these lengths instead of files."""

    def opened(group, job, tokenizer):
        return FakeGroup(group.name, groups[group.name], group.readings, job.seed)

    opening = "megapack.steps.multimodal.open_job"
    with (
        mock.patch(f"{opening}.open_group", opened),
        mock.patch(f"{opening}.open_tokenizer", return_value=FakeTokenizer()),
    ):
        yield


def shards(ranks, workers):
    """All shards of a world."""
    return [
        Shard(rank=rank, ranks=ranks, worker=worker, workers=workers)
        for rank in range(ranks)
        for worker in range(workers)
    ]
