"""Choices of the pack step."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class PackAlgorithm(StrEnum):
    """How rows are planned.

    BEST finds the fewest rows; STREAMING packs in one pass in reading order; AS_GIVEN keeps the
    documents of one source record as one row.
    """

    BEST = "best"
    STREAMING = "streaming"
    AS_GIVEN = "as_given"


class Duplicates(StrEnum):
    """What happens to a document whose id was already placed."""

    KEEP = "keep"
    DROP = "drop"


class BlendUnit(StrEnum):
    """What the weight of a source means.

    EPOCHS: how often the source is read; 2.5 is every document twice and half of them a third
    time. DOCUMENTS and TOKENS: the source's share of what is placed, relative to the sum of all
    weights.
    """

    EPOCHS = "epochs"
    DOCUMENTS = "documents"
    TOKENS = "tokens"


class BlendTotal(StrEnum):
    """How much is placed when weights are shares.

    FIRST_EXHAUSTED: no document twice, and at least one source used up. LAST_EXHAUSTED: every
    document at least once, and at least one source exactly once.
    """

    FIRST_EXHAUSTED = "first_exhausted"
    LAST_EXHAUSTED = "last_exhausted"


class BlendConfig(BaseModel):
    """How sources are weighed against one another.

    Attributes:
        unit: what the weight of a source means.
        total: how much is placed, in `unit`; said with shares, because it decides what is left
            out, and never with epochs.
        max_epochs: with shares, a source that would be read more often than this is refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: BlendUnit
    total: BlendTotal | Annotated[int, Field(ge=1)] | None = None
    max_epochs: float = Field(default=10.0, ge=1.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _total_goes_with_shares(self) -> Self:
        if self.unit is BlendUnit.EPOCHS and self.total is not None:
            raise ValueError(
                f"blend.total: expected none with unit = epochs, where weights decide it; found "
                f"{self.total}. Leave it out, or use unit = documents or tokens."
            )
        if self.unit is not BlendUnit.EPOCHS and self.total is None:
            raise ValueError(
                f"blend.total: expected with unit = {self.unit.value}; found none. Say "
                "first_exhausted (no document twice, what is over is left out), last_exhausted "
                f"(every document, scarce sources repeated) or a number of {self.unit.value}."
            )
        return self


class PackConfig(BaseModel):
    """Settings of the pack step.

    Attributes:
        row_length: positions in a row; has no default, because it decides cost.
        algorithm: planner.
        seed: seed of the stored row order, and of what a blend chooses.
        duplicates: keep repeated documents (they are often meant) or drop and count them.
        blend: how sources are weighed; every document once when absent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    row_length: int = Field(ge=1)
    algorithm: PackAlgorithm = PackAlgorithm.BEST
    seed: int = Field(default=0, ge=0)
    duplicates: Duplicates = Duplicates.KEEP
    blend: BlendConfig | None = None
