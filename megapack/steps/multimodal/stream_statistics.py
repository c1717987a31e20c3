"""What a stream did, counted from what was written."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from megapack.packing.greedy import ClosedRow, CloseReason
from megapack.records.multimodal_sample import LaidSample, SpanKind
from megapack.records.rejects import RejectReason


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GroupCounts(_Frozen):
    """What was written of a group.

    Attributes:
        samples: placed.
        tokens: positions, delimiters included.
    """

    samples: int = 0
    tokens: int = 0


class StreamStatistics(_Frozen):
    """Counts of rows that were handed out.

    Attributes:
        rows: handed out.
        capacity: `max_tokens` of all of them.
        tokens: positions written.
        text_tokens: of texts, their begin and end tokens included.
        vit_tokens: patches.
        vae_tokens: latents.
        images: VIT and VAE ones counted alike.
        groups: by name.
        closed: rows, by why they were handed out.
        closed_by: rows that a sample did not fit, by the budget it exceeded.
        deferred: samples that did not fit a row, by the budget they exceeded.
        mandatory_missed: mandatory groups whose sample did not fit a row.
        most_waiting: samples that waited at once.
        conditions: that might have been dropped, by kind; a video counts once.
        dropped: that were, by kind.
    """

    rows: int = 0
    capacity: int = 0
    tokens: int = 0
    text_tokens: int = 0
    vit_tokens: int = 0
    vae_tokens: int = 0
    images: int = 0
    groups: dict[str, GroupCounts] = {}
    closed: dict[CloseReason, int] = {}
    closed_by: dict[RejectReason, int] = {}
    deferred: dict[RejectReason, int] = {}
    mandatory_missed: int = 0
    most_waiting: int = 0
    conditions: dict[SpanKind, int] = {}
    dropped: dict[SpanKind, int] = {}

    @classmethod
    def of_row(cls, row: ClosedRow[LaidSample], max_tokens: int) -> Self:
        """Counts of one row."""
        laid = [item.content for item in row.items]
        conditions, dropped = _conditions(laid)
        groups: dict[str, GroupCounts] = {}
        for item in row.items:
            before = groups.get(item.group, GroupCounts())
            groups[item.group] = GroupCounts(
                samples=before.samples + 1, tokens=before.tokens + item.size.tokens
            )
        return cls(
            rows=1,
            capacity=max_tokens,
            tokens=row.size.tokens,
            text_tokens=sum(map(_text_tokens, laid)),
            vit_tokens=row.size.vit_tokens,
            vae_tokens=row.size.vae_tokens,
            images=row.size.images,
            groups=groups,
            closed={row.reason: 1},
            closed_by={} if row.cap is None else {row.cap: 1},
            deferred=dict(row.deferred),
            mandatory_missed=row.mandatory_missed,
            most_waiting=row.most_waiting,
            conditions=conditions,
            dropped=dropped,
        )

    def plus(self, other: "StreamStatistics") -> "StreamStatistics":
        """Both together: of two rows, or of two workers."""
        added: dict[str, Any] = {
            name: getattr(self, name) + getattr(other, name) for name in _NUMBERS
        }
        for name in _COUNTERS:
            added[name] = _sum(getattr(self, name), getattr(other, name))
        groups = {
            name: _both(self.groups.get(name), other.groups.get(name))
            for name in sorted({*self.groups, *other.groups})
        }
        return StreamStatistics(
            **added,
            groups=groups,
            most_waiting=max(self.most_waiting, other.most_waiting),
        )

    @property
    def fill(self) -> float:
        """Written positions of each position of a full row, in [0, 1]."""
        return self.tokens / self.capacity if self.capacity else 0.0

    @property
    def sample_shares(self) -> dict[str, float]:
        """Part of each group in the samples placed."""
        total = sum(group.samples for group in self.groups.values())
        return {name: group.samples / total for name, group in self.groups.items()}

    @property
    def token_shares(self) -> dict[str, float]:
        """Part of each group in the positions written."""
        return {name: group.tokens / self.tokens for name, group in self.groups.items()}


_COUNTERS = ("closed", "closed_by", "deferred", "conditions", "dropped")
_NUMBERS = (
    "rows",
    "capacity",
    "tokens",
    "text_tokens",
    "vit_tokens",
    "vae_tokens",
    "images",
    "mandatory_missed",
)


def _sum[K](first: Mapping[K, int], second: Mapping[K, int]) -> dict[K, int]:
    return dict(Counter(first) + Counter(second))


def _both(first: GroupCounts | None, second: GroupCounts | None) -> GroupCounts:
    parts = [part for part in (first, second) if part is not None]
    return GroupCounts(
        samples=sum(part.samples for part in parts), tokens=sum(part.tokens for part in parts)
    )


def _text_tokens(laid: LaidSample) -> int:
    """Positions of texts that were kept."""
    return sum(
        int(length)
        for item, length in zip(laid.sample.items, laid.lengths, strict=True)
        if item.kind is SpanKind.TEXT
    )


def _conditions(samples: list[LaidSample]) -> tuple[dict[SpanKind, int], dict[SpanKind, int]]:
    """Conditions that might have been dropped, and those that were."""
    conditions: Counter[SpanKind] = Counter()
    dropped: Counter[SpanKind] = Counter()
    for laid in samples:
        for item, kept in zip(laid.sample.items, laid.kept, strict=True):
            if item.droppable and not item.joins:
                conditions[item.kind] += 1
                dropped[item.kind] += not kept
    return dict(conditions), dict(+dropped)
