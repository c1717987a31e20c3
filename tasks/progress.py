"""A progress artifact of a running task that is updated a few times a minute, not at every step."""

import time
from typing import cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

_INTERVAL_S = 2.0


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
    """

    def __init__(self, *, key: str, description: str) -> None:
        created = create_progress_artifact(0.0, key=key, description=description)
        # Typed as sync or async; in a task that is a plain function it is sync.
        self._artifact = cast("UUID", created)
        self._clock = Clock(interval_s=_INTERVAL_S)

    def show(self, share: float, description: str) -> None:
        """Show a share in [0, 1]; calls that come too soon after the last one are left out."""
        if share < 1.0 and not self._clock.due():
            return
        update_progress_artifact(self._artifact, 100.0 * share, description=description)
