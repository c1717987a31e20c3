"""Choices of the pack step."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class PackAlgorithm(StrEnum):
    """How rows are planned."""

    BEST_FIT_DECREASING = "best_fit_decreasing"


class Duplicates(StrEnum):
    """What happens to a document whose id was already placed."""

    KEEP = "keep"
    DROP = "drop"


class PackConfig(BaseModel):
    """Settings of the pack step.

    Attributes:
        row_length: positions in a row; has no default, because it decides cost.
        algorithm: planner.
        seed: seed of the stored row order.
        duplicates: keep repeated documents (they are often meant) or drop and count them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    row_length: int = Field(ge=1)
    algorithm: PackAlgorithm = PackAlgorithm.BEST_FIT_DECREASING
    seed: int = Field(default=0, ge=0)
    duplicates: Duplicates = Duplicates.KEEP
