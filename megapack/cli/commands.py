"""How a command is declared: one sentence, examples, and what its exit code means."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Command = Callable[[argparse.Namespace], int]

FAILED = 1
WRONG = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What `--help` of a command teaches.

    Attributes:
        sentence: what the command does; begins the help and stands in the list of commands.
        examples: command lines, each with what it is for after two spaces and `#`.
        failed: what exit code 1 means.
        more: further paragraphs.
    """

    sentence: str
    examples: Sequence[str]
    failed: str = ""
    more: str = ""

    def epilog(self) -> str:
        """Examples and exit codes."""
        codes = ["  0  done"]
        codes += [f"  {FAILED}  {self.failed}"] if self.failed else []
        codes += [
            f"  {WRONG}  the command or the job is wrong, or the store failed: one line says why"
        ]
        blocks = [self.more] if self.more else []
        blocks += ["examples:\n" + "\n".join(f"  {line}" for line in self.examples)]
        blocks += ["exit codes:\n" + "\n".join(codes)]
        return "\n\n".join(blocks)


def add_command(commands: Any, name: str, lesson: Lesson, run: Command) -> argparse.ArgumentParser:  # noqa: ANN401 - argparse's own class is private
    """Register a command.

    Args:
        commands: what `ArgumentParser.add_subparsers` returned.
        name: its name.
        lesson: its help.
        run: takes the parsed options, returns the exit code.

    Returns:
        The parser, to add arguments to.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=lesson.sentence,
        description=lesson.sentence[0].upper() + lesson.sentence[1:] + ".",
        epilog=lesson.epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=run)
    return parser


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """The arguments that name a dataset version."""
    parser.add_argument(
        "uri", help="dataset folder or s3:// prefix, or the store of a job that made one dataset"
    )
    parser.add_argument("--version", type=int, help="version number (default: the newest)")


def positive(text: str) -> int:
    """Type of an argument that counts something."""
    return _at_least(1, int(text))


def natural(text: str) -> int:
    """Type of an argument that is 0 or more."""
    return _at_least(0, int(text))


def _at_least(least: int, number: int) -> int:
    if number < least:
        raise argparse.ArgumentTypeError(f"expected at least {least}, found {number}")
    return number
