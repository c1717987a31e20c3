"""`megapack extract`: teacher payloads, without Prefect."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megapack.cli.commands import Lesson, add_command
from megapack.cli.extract_flags import add_request_flags, request_of
from megapack.cli.progress import watcher
from megapack.cli.terminal import note, write
from megapack.steps.extract import extract
from megapack.steps.extraction.plan import plan_extraction, plan_lines
from megapack.steps.extraction.request import resolve_extraction
from megapack.steps.extraction.summary import payload_lines

LESSON = Lesson(
    sentence="store what a teacher says about every document: log-probs, top-k, hidden states",
    more=(
        "Starts one process a rank on this machine. A run that is stopped or killed goes on, when\n"
        "it is started again, after the shards that are recorded. The job file is that of\n"
        "`megapack run extract-teacher --params`; megapack plan --extract says what it would cost."
    ),
    examples=(
        "megapack extract --dataset OUT --teacher RUNS --store OUT --top-k 64",
        "megapack extract --dataset OUT --teacher HF_FOLDER --store OUT --hidden bf16 \\",
        "                 --set extract.parallel.tensor_model_parallel_size=2",
        "megapack extract job.json --set extract.max_bytes=1000000000000",
    ),
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse's own class is private
    """Register the command."""
    parser = add_command(commands, "extract", LESSON, _extract)
    parser.add_argument("job", nargs="?", type=Path, help="job file; flags change single fields")
    add_request_flags(parser)
    parser.add_argument("--store", metavar="DIR", help="folder or s3:// prefix for the payload")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="any other field, such as extract.sources='[\"chat\"]' or dataset_version=3; VALUE is "
        "JSON or text",
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the job to a file too")


def _extract(options: argparse.Namespace) -> int:
    job = resolve_extraction(request_of(options))
    plan = plan_extraction(job)
    for line in plan_lines(plan):
        note(line)
    plan.check()
    with watcher().stage("extract", plan.rows) as done:

        def on_metric(metric: Mapping[str, Any]) -> None:
            told = f"{metric['shards']} of {metric['total_shards']} shards stored"
            done(metric["rows"], f"{metric['rows']} of {metric['total_rows']} rows, {told}")

        payload = extract(job, on_line=_said, on_metric=on_metric)
    write(payload_lines(payload))
    return 0


def _said(rank: int, line: str) -> None:
    note(f"[rank {rank}] {line}")
