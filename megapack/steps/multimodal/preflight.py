"""Refuse a multimodal job that cannot work before it is run, and say how much there is to do.

Files are listed and their records counted. The estimate of rows rests on the first usable samples
of each group, by the headers of their images.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from megapack.jobs.multimodal import PackMultimodalJob
from megapack.jobs.multimodal_place import multimodal_uri
from megapack.multimodal.config import WritingRules
from megapack.multimodal.lay import full_size
from megapack.records.multimodal_sample import Sample
from megapack.records.rejects import SampleReject
from megapack.records.shard import Shard
from megapack.steps.multimodal.groups import DrawnSample, open_group
from megapack.steps.multimodal.tokenizer import open_tokenizer
from megapack.store.location import open_location

_LOOKED_AT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was found.

    Attributes:
        lines: one for each thing that is right, and the estimate.
        num_samples: samples of all epochs.
        warnings: one for each group of which none of the first records is usable.
    """

    lines: tuple[str, ...]
    num_samples: int
    warnings: tuple[str, ...] = ()


def check_multimodal(job: PackMultimodalJob) -> Checked:
    """Check what packing needs.

    Raises:
        ConfigError: the tokenizer or a source is wrong.
        DataError: a file as a whole is wrong.
        StoreError: the store refuses us or cannot be reached.
    """
    location = open_location(multimodal_uri(job))
    location.check_writable()
    tokenizer = open_tokenizer(job.stream)
    lines = [
        f"preflight store={location.uri} writable=yes conditional_writes=yes",
        f"preflight vocabulary={tokenizer.vocab_size} special_tokens=found",
    ]
    rules = WritingRules(special=tokenizer.special, vision=job.stream.vision)
    total, positions, stored = 0, 0.0, 0.0
    warnings: list[str] = []
    for group in job.stream.groups:
        opened = open_group(group, job.stream, tokenizer)
        samples = opened.num_samples * (group.readings or 1) * job.epochs
        drawn = list(islice(iter(opened.reader(Shard(), 0).next, None), _LOOKED_AT))
        usable, tokens, size = _looked_at(drawn, rules)
        warnings.extend(_none_usable(group.name, drawn))
        total += samples
        positions += samples * tokens
        stored += samples * size
        lines.append(
            f"preflight group={group.name} kind={group.kind.value} records={opened.num_samples} "
            f"samples={samples} usable_of_first={usable:.0%}"
        )
    rows = positions / job.stream.limits.expected_tokens
    lines.append(
        f"preflight estimate rows={rows:.0f} positions={positions:.0f} image_bytes={stored:.0f}"
    )
    return Checked(lines=tuple(lines), num_samples=total, warnings=tuple(warnings))


def _none_usable(group: str, drawn: list[DrawnSample]) -> Iterator[str]:
    """A warning where all of the first records are left out, by the commonest reason."""
    rejects = [one.outcome for one in drawn if isinstance(one.outcome, SampleReject)]
    if not rejects or len(rejects) < len(drawn):
        return
    (reason, count), *_ = Counter(reject.reason for reject in rejects).most_common(1)
    detail = next(reject.detail for reject in rejects if reject.reason is reason)
    yield (
        f"preflight warning group={group}: none of the first {len(drawn)} records is usable, "
        f"{count} of them for {reason}: {detail}"
    )


def _looked_at(drawn: list[DrawnSample], rules: WritingRules) -> tuple[float, float, float]:
    """Share of usable samples, and tokens and image bytes a sample, among the first of a group."""
    samples = [one.outcome for one in drawn if isinstance(one.outcome, Sample)]
    count = max(1, len(drawn))
    tokens = sum(full_size(one.items, rules).tokens for one in samples)
    size = sum(len(data) for one in samples for data in one.encoded)
    return len(samples) / count, tokens / count, size / count
