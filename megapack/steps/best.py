"""The best checkpoint of a run: the one with the lowest validation loss at its own step."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from megapack.jobs.addresses import train_address
from megapack.jobs.train import TrainJob
from megapack.records.refs import CheckpointRef
from megapack.steps.tables import usable_version
from megapack.store.location import open_location
from megapack.store.manifest import Manifest
from megapack.store.retention import living_versions
from megapack.store.versions import read_version

BEST = "best"
"""Key in a checkpoint manifest's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A checkpoint and its validation loss.

    Attributes:
        step: its step.
        loss: in nats a target token.
    """

    step: int
    loss: float

    def as_json(self) -> dict[str, Any]:
        """For a manifest."""
        return asdict(self)

    def is_of(self, manifest: Manifest) -> bool:
        """Whether a checkpoint's manifest is that of this step."""
        return manifest.counts.get("step") == self.step


def best_named(settings: Mapping[str, Any]) -> Score | None:
    """The best checkpoint that a manifest names, None when none was evaluated so far."""
    named = settings.get(BEST)
    return None if named is None else Score(**named)


def better_of(before: Score | None, now: Score | None) -> Score | None:
    """The lower loss, the earlier one when they are equal; NaN never counts."""
    if now is None or not math.isfinite(now.loss):
        return before
    return now if before is None or now.loss < before.loss else before


def best_checkpoint(job: TrainJob) -> CheckpointRef | None:
    """The best checkpoint of a job so far, None when no checkpoint's step was evaluated.

    Raises:
        StoreError: the store failed.
    """
    location = open_location(job.output)
    newest = usable_version(location, train_address(job))
    best = None if newest is None else best_named(newest.manifest.settings)
    if newest is None or best is None:
        return None
    versions = [v for v, found in living_versions(location).items() if best.is_of(found)]
    if not versions:
        return None
    return read_version(location, max(versions)).checkpoint_ref()
