"""How a dataset is brought up to date with its sources."""

from enum import StrEnum

from pydantic import Field

from megapack.jobs.base import Job


class RefreshMode(StrEnum):
    """What happens to the rows that are there."""

    ADD = "add"
    """Rows of which every document is still there stay as they are."""
    COMPACT = "compact"
    """All documents are packed anew, as a full preparation does."""


class RefreshSettings(Job):
    """Everything about a refresh except the preparation that it repeats.

    Attributes:
        mode: what happens to the rows that are there.
        keep_versions: newest versions that stay readable; pinned ones stay beside them.
    """

    mode: RefreshMode = RefreshMode.ADD
    keep_versions: int = Field(default=14, ge=1)
