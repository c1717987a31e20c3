"""Why samples of a multimodal source are left out, and their counts by group.

The law, checked at the end of a stream and of a stored version: drawn = placed + rejected + held,
where held are those that wait in the packer.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class RejectReason(StrEnum):
    """Every way in which a sample can be left out."""

    UNREADABLE_RECORD = "unreadable_record"
    MISSING_FIELD = "missing_field"
    UNREADABLE_IMAGE = "unreadable_image"
    MISSING_IMAGE = "missing_image"
    IMAGE_COUNT = "image_count"
    TOO_FEW_IMAGES = "too_few_images"
    TOO_MANY_PIXELS = "too_many_pixels"
    NO_TEXT = "no_text"
    UNKNOWN_ROLE = "unknown_role"
    NOTHING_SUPERVISED = "nothing_supervised"
    ALL_DROPPED = "all_dropped"
    TOO_MANY_TOKENS = "too_many_tokens"
    TOO_MANY_VIT_TOKENS = "too_many_vit_tokens"
    TOO_MANY_VAE_TOKENS = "too_many_vae_tokens"
    TOO_MANY_IMAGES = "too_many_images"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReject:
    """One sample that was left out.

    Attributes:
        reason: why.
        detail: expected, found, what to change.
    """

    reason: RejectReason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLedger:
    """What became of the samples that were drawn, by group.

    Attributes:
        drawn: samples read.
        placed: samples in rows that were handed out.
        rejected: samples left out, by group and reason.
    """

    drawn: Mapping[str, int] = field(default_factory=dict)
    placed: Mapping[str, int] = field(default_factory=dict)
    rejected: Mapping[str, Mapping[RejectReason, int]] = field(default_factory=dict)

    def plus(self, other: "SampleLedger") -> "SampleLedger":
        """Sum of two ledgers."""
        groups = {*self.rejected, *other.rejected}
        return SampleLedger(
            drawn=dict(Counter(self.drawn) + Counter(other.drawn)),
            placed=dict(Counter(self.placed) + Counter(other.placed)),
            rejected={
                group: dict(
                    Counter(self.rejected.get(group, {})) + Counter(other.rejected.get(group, {}))
                )
                for group in sorted(groups)
            },
        )

    def held(self, group: str) -> int:
        """Samples of a group that wait in the packer."""
        rejected = sum(self.rejected.get(group, {}).values())
        return self.drawn.get(group, 0) - self.placed.get(group, 0) - rejected
