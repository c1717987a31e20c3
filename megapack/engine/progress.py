"""How far a run is, and what a checkpoint says about it beside the model's own state."""

from dataclasses import dataclass

from megapack.engine.guard import GuardState


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is.

    Attributes:
        step: steps taken, skipped ones included.
        consumed_rows: rows of the training split consumed, over all epochs.
        skipped_steps: steps without an update: no target token, or the guard said so.
    """

    step: int = 0
    consumed_rows: int = 0
    skipped_steps: int = 0

    def after(self, *, rows: int, skipped: bool) -> "Progress":
        """Progress after one more step over `rows` rows."""
        return Progress(
            step=self.step + 1,
            consumed_rows=self.consumed_rows + rows,
            skipped_steps=self.skipped_steps + skipped,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment of a run, as a checkpoint of it says.

    Attributes:
        progress: steps and rows so far.
        guard: what the guard remembers.
        validation_loss: loss of the evaluation at this very step, None when there was none.
    """

    progress: Progress
    guard: GuardState
    validation_loss: float | None = None
