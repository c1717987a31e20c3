"""State of a multimodal stream: JSON of cursors and ids, never pixels, and whom it fits."""

from collections.abc import Collection, Mapping, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from megapack.errors import ConfigError
from megapack.jobs.multimodal import MultimodalJob
from megapack.packing.greedy import PackItem
from megapack.packing.group_draw import DrawState
from megapack.records.digest import digest_of
from megapack.records.multimodal_sample import LaidSample, SampleRef
from megapack.records.shard import Shard
from megapack.steps.multimodal.stream_statistics import StreamStatistics
from megapack.steps.multimodal.supply import SupplyState

STATE_VERSION = 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HeldSample(_Frozen):
    """A sample between rows, by name.

    Attributes:
        ref: where it is read again.
        tokens: that it takes, so that a changed file is noticed.
    """

    ref: SampleRef
    tokens: int

    @classmethod
    def of(cls, items: Sequence[PackItem[LaidSample]]) -> tuple[Self, ...]:
        """The names of held samples."""
        return tuple(cls(ref=item.content.sample.ref, tokens=item.size.tokens) for item in items)


class World(_Frozen):
    """What a state belongs to.

    Attributes:
        job: digest of all that decides what is drawn.
        seed: of the job.
        epoch: from 0.
        rank: data-parallel rank.
        ranks: their number.
        worker: data worker of the rank.
        workers: their number.
    """

    job: str
    seed: int
    epoch: int
    rank: int
    ranks: int
    worker: int
    workers: int

    @classmethod
    def of(cls, job: str, *, seed: int, epoch: int, shard: Shard) -> Self:
        """From its parts; `job` is a digest."""
        return cls(
            job=job,
            seed=seed,
            epoch=epoch,
            rank=shard.rank,
            ranks=shard.ranks,
            worker=shard.worker,
            workers=shard.workers,
        )


_ADVICE = {
    "seed": "Use the seed that the state was taken with, or begin the epoch anew.",
    "epoch": "Set the epoch of the state, or begin the other one without a state.",
    "ranks": "Go on with as many ranks, or begin the next epoch without a state.",
    "workers": "Go on with as many data workers, or begin the next epoch without a state.",
    "rank": "Give each rank the state that it took itself.",
    "worker": "Give each worker the state that it took itself.",
    "job": "Groups, limits, tokenizer or files changed: go on with those of the state, or begin "
    "the epoch anew.",
}


class StreamState(_Frozen):
    """Where a stream stands between two rows.

    Attributes:
        version: of this record.
        world: what it belongs to.
        supplies: where each group is read.
        draw: where the choice of groups stands.
        openers: samples that have to open the next row.
        waiting: samples that wait.
        placed: samples in rows handed out, by group.
        statistics: of rows handed out.
    """

    version: int = STATE_VERSION
    world: World
    supplies: dict[str, SupplyState]
    draw: DrawState
    openers: tuple[HeldSample, ...]
    waiting: tuple[HeldSample, ...]
    placed: dict[str, int]
    statistics: StreamStatistics

    @classmethod
    def read(cls, state: Mapping[str, object], world: World, names: Collection[str]) -> Self:
        """Read a state, and refuse one of another world; `names` are those of the groups.

        Raises:
            ConfigError: it belongs to another job, seed, epoch, rank or worker, or is damaged.
        """
        version = state.get("version")
        if version != STATE_VERSION:
            raise ConfigError(
                f"State of a multimodal stream: expected version {STATE_VERSION}, found {version}. "
                "Begin the epoch anew."
            )
        try:
            read = cls.model_validate(state, strict=False)
        except ValidationError as error:
            raise ConfigError(
                f"State of a multimodal stream: expected what `state` gave, found: {error}"
            ) from error
        check_world(read.world.model_dump(), world.model_dump())
        groups = {one.ref.group for one in (*read.openers, *read.waiting)} | {*read.draw.ended}
        if set(read.supplies) != set(names) or not groups <= set(names):
            raise ConfigError(
                f"State of a multimodal stream: expected the groups {sorted(names)}, found "
                f"{sorted({*read.supplies, *groups})}. It is damaged: begin the epoch anew."
            )
        return read


def check_world(found: Mapping[str, object], expected: Mapping[str, object]) -> None:
    """Refuse a state of another world.

    Args:
        found: fields of the state's `World`.
        expected: those that are known of this run.

    Raises:
        ConfigError: one of them differs; says both values.
    """
    for name, advice in _ADVICE.items():
        if name in expected and found.get(name) != expected[name]:
            raise ConfigError(
                f"State of a multimodal stream: expected {name} {expected[name]} as in this run, "
                f"found {name} {found.get(name)} in the state. {advice}"
            )


def job_digest(job: MultimodalJob, tokenizer: str, records: Mapping[str, str]) -> str:
    """Digest of all that decides what is drawn; folders may move.

    Args:
        job: the job.
        tokenizer: digest of the tokenizer.
        records: digest of the list of records of each group.
    """
    settings = job.model_dump(mode="json", exclude={"tokenizer": True, "seed": True})
    for group in settings["groups"]:
        for source in group["sources"]:
            for name in ("uri", "images", "metadata"):
                del source[name]
    return digest_of({"settings": settings, "tokenizer": tokenizer, "records": dict(records)})
