"""Usable samples of one group, one after the other, with a count of what became of the others.

A group that repeats without end and has no usable sample would keep the stream busy for ever. A
worker notices when a whole reading of its part gave none; then it looks at all parts, so that the
answer does not depend on how the group was dealt out. A group that ends without one would be
missing from the mixture unseen: that is an error where one worker reads all of it; one of several
warns, as others may have some.
"""

import logging
from collections import Counter
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict

from megapack.errors import DataError
from megapack.jobs.multimodal import SampleGroup
from megapack.multimodal.pixels import place_of
from megapack.records.multimodal_sample import LaidSample, SampleRef
from megapack.records.rejects import RejectReason, SampleReject
from megapack.records.shard import Shard
from megapack.steps.multimodal.groups import GroupCursor, OpenGroup
from megapack.steps.multimodal.judge import Judge

_logger = logging.getLogger(__name__)

OnReject = Callable[[SampleRef, SampleReject], None]


class SupplyState(BaseModel):
    """Where a group is read.

    Attributes:
        cursor: of its reader.
        reading: reading of the last sample.
        usable: usable samples in that reading.
        drawn: samples read.
        rejected: samples left out, by reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cursor: GroupCursor
    reading: int
    usable: int
    drawn: int
    rejected: dict[RejectReason, int]


class GroupSupply:
    """Samples of a group for one shard, judged.

    Args:
        group: as the job says.
        opened: its files.
        judge: decides what is usable.
        shard: part of the records.
        on_reject: told of each sample that is left out.
    """

    def __init__(
        self,
        group: SampleGroup,
        opened: OpenGroup,
        *,
        judge: Judge,
        shard: Shard,
        on_reject: OnReject | None = None,
    ) -> None:
        self.group = group
        self._opened = opened
        self._shard = shard
        self._judge = judge
        self._on_reject = on_reject
        self._reader = opened.reader(shard, judge.epoch)
        self._reading = 0
        self._usable = 0
        self._has_usable = group.readings is not None
        self.drawn = 0
        self.rejected: Counter[RejectReason] = Counter()
        self.examples: dict[RejectReason, str] = {}

    def next(self) -> LaidSample | None:
        """The next usable sample, or None when all readings are done.

        Raises:
            DataError: a group has no usable sample; where several workers read one that ends, a
                warning is logged instead.
        """
        while (drawn := self._reader.next()) is not None:
            self._begin_reading(drawn.ref.reading)
            self.drawn += 1
            outcome = drawn.outcome
            judged = outcome if isinstance(outcome, SampleReject) else self._judge.judged(outcome)
            if isinstance(judged, LaidSample):
                self._usable += 1
                return judged
            self.rejected[judged.reason] += 1
            self.examples.setdefault(judged.reason, f"{place_of(drawn.ref)}: {judged.detail}")
            if self._on_reject is not None:
                self._on_reject(drawn.ref, judged)
        self._check_ended()
        return None

    def again(self, ref: SampleRef, tokens: int) -> LaidSample:
        """A sample that was read before, as it was.

        Raises:
            DataError: it is not what it was.
        """
        judged = self._judge.judged(self._reader.fetch(ref))
        found = judged.detail if isinstance(judged, SampleReject) else f"{judged.size.tokens}"
        if isinstance(judged, SampleReject) or judged.size.tokens != tokens:
            raise DataError(
                f"Group {ref.group}, source {ref.source}, {ref.file}, record {ref.row}: expected "
                f"the {tokens} tokens that it had when the state was taken, found: {found}. The "
                "file was changed in between; put it back, or begin the epoch anew."
            )
        return judged

    def has_usable(self) -> bool:
        """Whether any record of the group is usable, whichever part it is in."""
        reader = self._opened.reader(Shard(), self._judge.epoch)
        while (drawn := reader.next()) is not None and drawn.ref.reading == 0:
            outcome = drawn.outcome
            judged = outcome if isinstance(outcome, SampleReject) else self._judge.judged(outcome)
            if isinstance(judged, LaidSample):
                return True
        return False

    def none_usable(self) -> DataError:
        """The error that says so, with counts."""
        return DataError(
            f"Group {self.group.name}: expected usable samples, found none among "
            f"{self._opened.num_samples} records ({self._counts()}).{self._example()} Mend the "
            "data or the group's fields, raise the limits, or leave the group out."
        )

    def state(self) -> SupplyState:
        """Where the group is read."""
        return SupplyState(
            cursor=self._reader.cursor(),
            reading=self._reading,
            usable=self._usable,
            drawn=self.drawn,
            rejected=dict(self.rejected),
        )

    def resume(self, state: SupplyState) -> None:
        """Go on where `state` was taken."""
        self._reader.seek(state.cursor)
        self._reading = state.reading
        self._usable = state.usable
        self.drawn = state.drawn
        self.rejected = Counter(state.rejected)

    def _check_ended(self) -> None:
        """Say that all records of this worker were left out, if so."""
        if not self.drawn or self.rejected.total() < self.drawn:
            return
        if self._shard.count == 1:
            raise self.none_usable()
        _logger.warning(
            "Group %s: worker %d of %d found no usable sample among its %d (%s).%s",
            self.group.name,
            self._shard.index,
            self._shard.count,
            self.drawn,
            self._counts(),
            self._example(),
        )

    def _counts(self) -> str:
        return ", ".join(f"{reason}: {count}" for reason, count in sorted(self.rejected.items()))

    def _example(self) -> str:
        return next((f" For example: {one}" for one in self.examples.values()), "")

    def _begin_reading(self, reading: int) -> None:
        """Check the reading that ended, if one did."""
        if reading == self._reading:
            return
        if not self._usable and not self._has_usable:
            if not self.has_usable():
                raise self.none_usable()
            self._has_usable = True
        self._reading = reading
        self._usable = 0
