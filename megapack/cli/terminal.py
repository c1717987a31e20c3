"""Lines for a terminal or a pipe: a broken pipe is no failure, colours need a terminal."""

import io
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from megapack.errors import StoreError


def write(lines: Iterable[str]) -> None:
    """Print lines; whoever reads them may stop early, as `head` does."""
    try:
        for line in lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered must not fail once more when the interpreter exits.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def escape_what_cannot_be_shown() -> None:
    """Let characters that stdout's encoding lacks come out as escapes, not as a failure."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def note(line: str) -> None:
    """Tell the person at the terminal something that is no result: it goes to stderr."""
    sys.stderr.write(line + "\n")


def in_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal that takes colours (https://no-color.org is heard)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not plain


def write_page(path: Path, lines: Iterable[str]) -> None:
    """Write an HTML file, once all of it is made.

    Raises:
        StoreError: it cannot be written.
    """
    text = "\n".join(lines) + "\n"
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise StoreError(f"could not write {path}: {error}.") from error
    note(f"wrote {path} ({path.stat().st_size:,} bytes): open it in a browser")
