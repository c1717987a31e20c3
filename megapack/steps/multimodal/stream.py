"""`MultimodalStream`: packed rows of an epoch for one worker, with a state after each.

What a sample contains is a function of (seed, epoch, where it comes from). Which samples a worker
reads, and in which order, is a function of (seed, epoch, number of workers and ranks). Nothing is
taken from the process's own generators, and none is changed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from megapack.errors import ConfigError, ContractError
from megapack.jobs.multimodal import MultimodalJob
from megapack.multimodal.config import WritingRules
from megapack.packing.greedy import ClosedRow, CloseReason, GreedyPacker, Held, PackItem
from megapack.packing.group_draw import GroupDraw
from megapack.records.multimodal_sample import LaidSample, SampleSize
from megapack.records.rejects import SampleLedger
from megapack.records.shard import Shard
from megapack.steps.multimodal.judge import Judge
from megapack.steps.multimodal.open_job import open_job
from megapack.steps.multimodal.stream_state import HeldSample, StreamState, World
from megapack.steps.multimodal.stream_statistics import StreamStatistics
from megapack.steps.multimodal.supply import GroupSupply, OnReject


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamRow:
    """A row that was handed out.

    Attributes:
        laid: its samples, with pixels.
        size: their sum.
        reason: why it was handed out.
        state: JSON; a stream made from it goes on after this row.
    """

    laid: tuple[LaidSample, ...]
    size: SampleSize
    reason: CloseReason
    state: dict[str, object] = field(repr=False)


class MultimodalStream:
    """Rows of one epoch.

    Args:
        job: what is read and how it is packed.
        shard: which worker of which rank.
        epoch: from 0; None for that of the state, or 0.
        state: a state after some row of the same epoch and worker.
        on_reject: told of each sample when it is left out.

    Raises:
        ConfigError: the state belongs to another job, seed, epoch, rank or worker; a group has
            fewer records than there are workers.
    """

    def __init__(
        self,
        job: MultimodalJob,
        *,
        shard: Shard | None = None,
        epoch: int | None = None,
        state: Mapping[str, object] | None = None,
        on_reject: OnReject | None = None,
    ) -> None:
        self.job = job
        self.shard = Shard() if shard is None else shard
        self.epoch = _epoch(epoch, state)
        opened = open_job(job)
        self.rules = WritingRules(
            special=opened.tokenizer.special, vision=job.vision, loss_weighting=job.loss_weighting
        )
        judge = Judge(
            rules=self.rules,
            limits=job.limits,
            dropout=job.dropout,
            seed=job.seed,
            epoch=self.epoch,
        )
        self._supplies = {
            group.name: GroupSupply(
                group, opened.groups[group.name], judge=judge, shard=self.shard, on_reject=on_reject
            )
            for group in job.groups
        }
        self._world = World.of(opened.digest, seed=job.seed, epoch=self.epoch, shard=self.shard)
        self._placed: Counter[str] = Counter()
        self._statistics = StreamStatistics()
        self._draw = GroupDraw(
            {group.name: group.weight for group in job.groups},
            seed=job.seed,
            epoch=self.epoch,
            shard=self.shard,
        )
        self._packer = self._resumed(state)
        self._ended = False

    def __iter__(self) -> Iterator[StreamRow]:
        return self

    def __next__(self) -> StreamRow:
        """The next row.

        Raises:
            StopIteration: the epoch is over.
            DataError: a group has no usable sample, as far as this worker reads all of it or it
                has no end; or none of the groups has one.
            ContractError: samples were lost.
        """
        row = None if self._ended else self._packer.next_row()
        if row is None:
            self._end()
            raise StopIteration
        self._count(row)
        return StreamRow(
            laid=tuple(item.content for item in row.items),
            size=row.size,
            reason=row.reason,
            state=self.state(),
        )

    def state(self) -> dict[str, object]:
        """JSON: where the stream stands after the last row."""
        held = self._packer.held()
        state = StreamState(
            world=self._world,
            supplies={name: supply.state() for name, supply in self._supplies.items()},
            draw=self._draw.state(),
            openers=HeldSample.of(held.openers),
            waiting=HeldSample.of(held.waiting),
            placed=dict(self._placed),
            statistics=self._statistics,
        )
        return state.model_dump(mode="json")

    def ledger(self) -> SampleLedger:
        """What became of the samples that were drawn."""
        supplies = self._supplies.items()
        return SampleLedger(
            drawn={name: supply.drawn for name, supply in supplies if supply.drawn},
            placed=dict(self._placed),
            rejected={name: dict(supply.rejected) for name, supply in supplies if supply.rejected},
        )

    def statistics(self) -> StreamStatistics:
        """Counts of the rows that were handed out."""
        return self._statistics

    def _resumed(self, state: Mapping[str, object] | None) -> GreedyPacker[LaidSample]:
        """The packer, at the beginning or where the state was taken."""
        held: Held[LaidSample] = Held()
        if state is not None:
            read = StreamState.read(state, self._world, self._supplies)
            for name, supply in self._supplies.items():
                supply.resume(read.supplies[name])
            self._draw.resume(read.draw)
            self._placed = Counter(read.placed)
            self._statistics = read.statistics
            held = Held(openers=self._again(read.openers), waiting=self._again(read.waiting))
        return GreedyPacker(
            self.job.limits,
            self._draw,
            self._take,
            mandatory=[group.name for group in self.job.groups if group.mandatory],
            held=held,
        )

    def _again(self, held: tuple[HeldSample, ...]) -> tuple[PackItem[LaidSample], ...]:
        return tuple(
            _item(self._supplies[one.ref.group].again(one.ref, one.tokens)) for one in held
        )

    def _take(self, group: str) -> PackItem[LaidSample] | None:
        laid = self._supplies[group].next()
        return None if laid is None else _item(laid)

    def _count(self, row: ClosedRow[LaidSample]) -> None:
        written = SampleSize()
        for item in row.items:
            self._placed[item.group] += 1
            written = written.plus(item.content.size)
        if written != row.size or not self.job.limits.fits(written):
            raise ContractError(
                f"MultimodalStream: expected a row of the size it was packed to within its "
                f"budgets, {row.size}, found {written}."
            )
        self._statistics = self._statistics.plus(
            StreamStatistics.of_row(row, self.job.limits.max_tokens)
        )

    def _end(self) -> None:
        """Check that nothing was lost, and that anything was there."""
        self._ended = True
        ledger = self.ledger()
        for name in self._supplies:
            if ledger.held(name):
                raise ContractError(
                    f"MultimodalStream, group {name}: expected drawn = placed + rejected at the "
                    f"end, found {ledger.held(name)} samples that are neither."
                )
        if self._placed:
            return
        supplies = self._supplies.values()
        if not any(supply.has_usable() for supply in supplies):
            raise max(supplies, key=lambda supply: supply.drawn).none_usable()


def _item(laid: LaidSample) -> PackItem[LaidSample]:
    return PackItem(group=laid.sample.ref.group, size=laid.size, content=laid)


def _epoch(epoch: int | None, state: Mapping[str, object] | None) -> int:
    """The epoch that was asked for, else that of the state, else 0."""
    if epoch is not None:
        return epoch
    world = state.get("world") if state is not None else None
    found = world.get("epoch", 0) if isinstance(world, Mapping) else 0
    if not isinstance(found, int) or found < 0:
        raise ConfigError(f"State of a multimodal stream: expected an epoch, found {found!r}.")
    return found
