"""What a converter raises for a record that cannot become a sample."""

from megapack.records.rejects import RejectReason, SampleReject

_SHOWN = 80


class RejectedError(Exception):
    """A record is left out.

    Attributes:
        reject: why.
    """

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(detail)
        self.reject = SampleReject(reason=reason, detail=detail)


def shown(value: object) -> str:
    """The beginning of a value, for messages; large values are not written out whole."""
    if isinstance(value, str | bytes):
        return repr(value[:_SHOWN]) + ("..." if len(value) > _SHOWN else "")
    if value is None or isinstance(value, int | float):
        return repr(value)[:_SHOWN]
    return f"a value of type {type(value).__name__}"
