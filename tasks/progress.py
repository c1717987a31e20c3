"""A progress artifact of a running task that is updated a few times a minute, not at every step.

A task that ends within seconds makes none: hundreds of short tasks would spend their time on it.
"""

import time
from enum import Enum
from typing import cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

_INTERVAL_S = 2.0


class Begin(Enum):
    """When a progress artifact is made."""

    AT_ONCE = 0
    WHEN_LONG = 1


class Clock:
    """Says when something may be shown again.

    Args:
        interval_s: seconds that must pass in between.
    """

    def __init__(self, *, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next = 0.0

    def due(self) -> bool:
        """True when the interval has passed; then it begins anew."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._interval_s
        return True


class LiveProgress:
    """One progress artifact, from 0 to 100 percent.

    Args:
        key: artifact key.
        description: what it shows before the first update.
        begin: whether it is there from the start, or once the task has run for a while.
    """

    def __init__(self, *, key: str, description: str, begin: Begin = Begin.AT_ONCE) -> None:
        self._key = key
        self._clock = Clock(interval_s=_INTERVAL_S)
        self._artifact: UUID | None = None
        if begin is Begin.AT_ONCE:
            self._artifact = self._create(0.0, description)
        else:
            self._clock.due()

    def show(self, share: float, description: str) -> None:
        """Show a share in [0, 1]; calls that come too soon after the last one are left out."""
        if not self._clock.due() and (share < 1.0 or self._artifact is None):
            return
        if self._artifact is None:
            self._artifact = self._create(share, description)
        else:
            update_progress_artifact(self._artifact, 100.0 * share, description=description)

    def rows(self, done: int, total: int) -> None:
        """Show how many of some rows are done."""
        self.show(done / total, f"{done} of {total} rows")

    def _create(self, share: float, description: str) -> UUID:
        created = create_progress_artifact(100.0 * share, key=self._key, description=description)
        # Typed as sync or async; in a task that is a plain function it is sync.
        return cast("UUID", created)
