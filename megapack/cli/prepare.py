"""`megapack prepare`: conversations to an audited dataset, without Prefect."""

import argparse
from typing import Any

from megapack.cli.commands import FAILED, Lesson, add_command
from megapack.cli.job_flags import add_job_flags, job_of
from megapack.cli.progress import watcher
from megapack.cli.report import print_report
from megapack.cli.terminal import note, write
from megapack.steps.prepare import prepare

LESSON = Lesson(
    sentence="make a dataset from conversations: split, tokenize, pack, audit",
    more=(
        "Runs in this process, without Prefect. Run it again after a stop or a change: what is\n"
        "there already is not made again. --row-length and --long-documents have no default,\n"
        "because they decide what it costs and what is lost; `megapack plan` shows how much.\n\n"
        "Documents longer than a row:\n"
        "  split     cut at user turns; each piece begins with the system message\n"
        "  truncate  the end is cut off\n"
        "  drop      left out, and counted\n"
        "  error     the job stops at the first\n\n"
        "A job file made with --save shows every other field; --set changes one."
    ),
    examples=(
        "megapack prepare --source chats.jsonl --tokenizer DIR --row-length 4096 \\",
        "                 --long-documents split --store OUT",
        "megapack prepare job.json                                   # a job saved before",
        "megapack prepare job.json --set pack_for.context_parallel_size=4",
    ),
    failed="the audit found a broken law",
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse's own class is private
    """Register the command."""
    add_job_flags(add_command(commands, "prepare", LESSON, _prepare))


def _prepare(options: argparse.Namespace) -> int:
    job = job_of(options)
    made = prepare(job, watcher=watcher())
    print_report(made.dataset)
    if made.dataset.reused:
        note("nothing had changed: this version stood there already")
    if made.audit.violations:
        write(["", "the audit found:", *(f"  {line}" for line in made.audit.violations)])
        return FAILED
    note(f"look at it: megapack inspect {made.dataset.uri}")
    return 0
