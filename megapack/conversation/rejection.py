"""`RejectedError`: one conversation cannot be used. The steps turn it into a counted `Drop`."""

from megapack.errors import DataError
from megapack.records.drops import DropReason


class RejectedError(DataError):
    """A conversation that is left out, with the reason that the drop report counts.

    Attributes:
        reason: what the report counts it under.
        detail: expected, found, where in the conversation, what to change.
    """

    def __init__(self, reason: DropReason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[object, ...]:
        """Keep both arguments when the error crosses a process boundary."""
        return (RejectedError, (self.reason, self.detail))
