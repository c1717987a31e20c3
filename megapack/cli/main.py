"""The `megapack` command: puts the commands together, and turns errors into one line.

Loads neither torch nor Prefect.
"""

import argparse
import sys
from collections.abc import Sequence

from megapack.cli import (
    audit,
    export,
    export_weights,
    extract,
    inspect,
    pack_multimodal,
    plan,
    prepare,
    refresh,
    report,
    run,
)
from megapack.cli.commands import WRONG
from megapack.cli.terminal import escape_what_cannot_be_shown
from megapack.errors import MegapackError

_INTERRUPTED = 130
_EPILOG = """\
from your conversations to a dataset you have looked at:
  megapack plan    --source chats.jsonl --tokenizer DIR --row-length 4096 --long-documents split
  megapack prepare --source chats.jsonl --tokenizer DIR --row-length 4096 --long-documents split \\
                   --store OUT
  megapack inspect OUT                      # decoded, with the trained tokens marked
  megapack inspect OUT --drops              # what was left out, and why
  megapack report  OUT --html report.html   # with pictures

`megapack COMMAND --help` has examples of each command and says what its exit code means."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        Exit code: 0 done, 1 the run or the audit failed, 2 the command was wrong.
    """
    options = _parser().parse_args(arguments)
    escape_what_cannot_be_shown()
    try:
        code: int = options.command(options)
    except MegapackError as error:
        sys.stderr.write(f"megapack: {error}\n")
        return WRONG
    except KeyboardInterrupt:
        sys.stderr.write("megapack: stopped. Run it again: what was finished is not done again.\n")
        return _INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="megapack",
        description="Chat data to packed rows that train as they are, made so that you can look.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    data = (prepare, refresh, plan, inspect, report, audit, export)
    for module in (*data, pack_multimodal, extract, export_weights, run):
        module.add(commands)
    return parser
