"""`megapack refresh`: bring a dataset up to date with its sources, without Prefect."""

import argparse
from typing import Any

from megapack.cli.commands import FAILED, Lesson, add_command, positive
from megapack.cli.job_flags import add_job_flags, job_of
from megapack.cli.progress import watcher
from megapack.cli.terminal import note, write
from megapack.jobs.refresh import RefreshMode, RefreshSettings
from megapack.steps.refresh_sources import refresh_sources

LESSON = Lesson(
    sentence="bring a dataset up to date with its sources: only what is new is read and tokenized",
    more=(
        "Takes the job that made the dataset. Rows of which every document is still there are\n"
        "shared with the version before; when nothing changed, there is no new version. Prints\n"
        "what changed. Old versions go afterwards, and what nothing needs when it is old enough;\n"
        "not when the audit finds something."
    ),
    examples=(
        "megapack refresh job.json",
        "megapack refresh job.json --compact           # pack all anew: the rows of a preparation",
        "megapack refresh job.json --keep-versions 3   # the newest 3 stay, and those in use",
    ),
    failed="the audit found a broken law",
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse's own class is private
    """Register the command."""
    parser = add_command(commands, "refresh", LESSON, _refresh)
    add_job_flags(parser)
    parser.add_argument("--compact", action="store_true", help="pack all documents anew")
    parser.add_argument(
        "--keep-versions",
        type=positive,
        default=RefreshSettings().keep_versions,
        metavar="N",
        help="newest versions that stay (default: %(default)s)",
    )


def _refresh(options: argparse.Namespace) -> int:
    mode = RefreshMode.COMPACT if options.compact else RefreshMode.ADD
    settings = RefreshSettings(mode=mode, keep_versions=options.keep_versions)
    made = refresh_sources(job_of(options), settings, watcher=watcher())
    write(
        [
            *(made.changes or ("nothing changed",)),
            f"{made.dataset.uri} version {made.dataset.version}",
        ]
    )
    if made.violations:
        write(["", "the audit found:", *(f"  {line}" for line in made.violations)])
        return FAILED
    note(f"look at it: megapack inspect {made.dataset.uri}")
    return 0
