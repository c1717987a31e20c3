"""What the local stack says when it cannot go on: one line and an exit code."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of `python -m infra.local`."""

    OK = 0
    FAILED = 1
    PREREQUISITE = 2
    INTERRUPTED = 130


class StackError(Exception):
    """The stack cannot do what was asked; the message is one line that says what to change."""

    exit_code = ExitCode.FAILED


class PrerequisiteError(StackError):
    """The machine or the request allows no start: missing program, taken port, bad folder."""

    exit_code = ExitCode.PREREQUISITE
