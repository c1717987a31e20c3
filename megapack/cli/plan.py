"""`megapack plan`: what a job would make, before it is made."""

import argparse
from typing import Any

from megapack.cli.commands import Lesson, add_command, positive
from megapack.cli.extract_flags import NO_STORE, add_request_flags, request_of
from megapack.cli.job_flags import add_job_flags, job_of
from megapack.cli.progress import watcher
from megapack.cli.terminal import write
from megapack.steps.extraction.plan import plan_extraction, plan_lines
from megapack.steps.extraction.rate import Told
from megapack.steps.extraction.request import resolve_extraction
from megapack.steps.plan_job import plan_job
from megapack.steps.plan_text import plan_text

_SAMPLE = 2000
LESSON = Lesson(
    sentence="say what a job would make: documents, rows, fill, bytes, steps, drops, costs",
    more=(
        "Looks at the first records of every source, through the real steps, in a temporary\n"
        "folder; writes nothing to the store. Says what its numbers rest on.\n\n"
        "With --extract, the job is that of megapack extract: documents, bytes of each kind,\n"
        "shards and time of teacher payloads; what is over extract.max_bytes is refused."
    ),
    examples=(
        "megapack plan --source chats.jsonl --tokenizer DIR --row-length 4096 \\",
        "              --long-documents split --global-batch-rows 64",
        "megapack plan job.json --all             # exact, at the cost of the job itself",
        "megapack plan job.json --set pack.row_length=8192",
        "megapack plan --extract --dataset OUT --teacher RUNS --top-k 64 --tokens-per-s 20000",
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
    _add_extraction(parser)


def _add_extraction(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("teacher payloads")
    group.add_argument("--extract", action="store_true", help="plan teacher payloads")
    add_request_flags(group)
    group.add_argument(
        "--tokens-per-s",
        type=float,
        metavar="N",
        help="tokens a second over all ranks (default: as an earlier extraction measured)",
    )
    group.add_argument(
        "--device-flops",
        type=float,
        metavar="N",
        help="operations a second that one device sustains, such as 4e14",
    )


def _plan(options: argparse.Namespace) -> int:
    return _plan_extraction(options) if options.extract else _plan_data(options)


def _plan_extraction(options: argparse.Namespace) -> int:
    told = Told(tokens_per_s=options.tokens_per_s, device_flops=options.device_flops)
    plan = plan_extraction(resolve_extraction(request_of(options, store=NO_STORE)), told)
    write(plan_lines(plan))
    plan.check()
    return 0


def _plan_data(options: argparse.Namespace) -> int:
    job = job_of(options, store="not written to")
    plan = plan_job(job, records=None if options.all else options.sample, watcher=watcher())
    write(plan_text(plan, batch_rows=options.global_batch_rows))
    return 0
