"""Errors megapack raises: one base, five kinds, told apart by what the reader can do about them.

Every message says what was expected, what was found, where, and what to change. Prefect retries
`StoreError` and `RankError` only; the other kinds cannot succeed on a second try.
"""

import signal


class MegapackError(Exception):
    """Base of every error that megapack raises on purpose."""


class ConfigError(MegapackError):
    """The job is wrong: a parameter, a path, a layout. Retrying cannot help."""


class DataError(MegapackError):
    """A document, a row or a file holds something that megapack cannot use."""


class StoreError(MegapackError):
    """Object storage or a local folder failed, or refused us. May be tried again."""


class ContractError(MegapackError):
    """An invariant of megapack itself broke: a bug of ours, or a damaged artefact."""


class RankError(MegapackError):
    """A training or extraction process died.

    Attributes:
        rank: global rank that failed first, or -1 when the launcher itself failed.
        exit_code: its exit code; negative numbers are signals.
        tail: its last lines of output, oldest first.
    """

    def __init__(
        self, message: str, *, rank: int = -1, exit_code: int = 1, tail: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.exit_code = exit_code
        self.tail = tail

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the keyword arguments when the error crosses a process boundary."""
        return (_rank_error, (str(self), self.rank, self.exit_code, self.tail))


class StoppedError(RankError):
    """A run was told to stop (SIGTERM); the same job goes on where it ended.

    Not a failure: the checkpoint that the message names is whole.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int = -1,
        exit_code: int = -signal.SIGTERM,
        tail: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, rank=rank, exit_code=exit_code, tail=tail)

    def __reduce__(self) -> tuple[object, ...]:
        """As its base, under its own name."""
        return (_stopped_error, (str(self), self.rank, self.exit_code, self.tail))


def _stopped_error(message: str, rank: int, exit_code: int, tail: tuple[str, ...]) -> StoppedError:
    return StoppedError(message, rank=rank, exit_code=exit_code, tail=tail)


def _rank_error(message: str, rank: int, exit_code: int, tail: tuple[str, ...]) -> RankError:
    return RankError(message, rank=rank, exit_code=exit_code, tail=tail)
