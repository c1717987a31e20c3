"""`megapack plan`: what a job would make, before it is made."""

import argparse
from typing import Any

from megapack.cli.commands import Lesson, add_command, positive
from megapack.cli.job_flags import add_job_flags, job_of
from megapack.cli.progress import watcher
from megapack.cli.terminal import write
from megapack.steps.plan_job import plan_job
from megapack.steps.plan_text import plan_text

_SAMPLE = 2000
LESSON = Lesson(
    sentence="say what a job would make: documents, rows, fill, bytes, steps, drops, costs",
    more=(
        "Looks at the first records of every source, through the real steps, in a temporary\n"
        "folder; writes nothing to the store. Says what its numbers rest on."
    ),
    examples=(
        "megapack plan --source chats.jsonl --tokenizer DIR --row-length 4096 \\",
        "              --long-documents split --global-batch-rows 64",
        "megapack plan job.json --all             # exact, at the cost of the job itself",
        "megapack plan job.json --set pack.row_length=8192",
    ),
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse's own class is private
    """Register the command."""
    parser = add_command(commands, "plan", LESSON, _plan)
    add_job_flags(parser)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "--sample",
        type=positive,
        default=_SAMPLE,
        metavar="N",
        help=f"records of each source to look at (default: {_SAMPLE})",
    )
    amount.add_argument("--all", action="store_true", help="look at every record")
    parser.add_argument(
        "--global-batch-rows", type=positive, metavar="N", help="rows of an optimizer step"
    )


def _plan(options: argparse.Namespace) -> int:
    job = job_of(options, store="not written to")
    plan = plan_job(job, records=None if options.all else options.sample, watcher=watcher())
    write(plan_text(plan, batch_rows=options.global_batch_rows))
    return 0
