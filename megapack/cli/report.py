"""`megapack report URI`: what came in, where it went, what was dropped and why."""

import argparse
from pathlib import Path
from typing import Any

from megapack.cli.commands import Lesson, add_command, add_dataset
from megapack.cli.dataset import dataset_of, multimodal_of
from megapack.cli.drops import list_drops
from megapack.cli.terminal import write, write_page
from megapack.records.refs import DatasetRef, MultimodalRef
from megapack.steps.drop_examples import first_drops
from megapack.steps.report import packing_report
from megapack.steps.report_details import packing_details
from megapack.steps.report_origin import origin
from megapack.steps.report_page import report_page
from megapack.steps.report_text import report_text
from megapack.steps.version_list import version_text

LESSON = Lesson(
    sentence="say what a dataset holds, and what was dropped and why",
    more="Reads counts, lengths and masks, never the tokens.",
    examples=(
        "megapack report s3://bucket/datasets/chats",
        "megapack report OUT --html report.html   # with pictures, to open in a browser",
        "megapack report OUT --versions   # what each refresh changed",
        "megapack report OUT --drops | grep too_long   # every dropped record: file, line, why",
    ),
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse's own class is private
    """Register the command."""
    parser = add_command(commands, "report", LESSON, _report)
    add_dataset(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--drops", action="store_true", help="one line for every dropped record")
    shown.add_argument(
        "--versions", action="store_true", help="the newest versions, and what each changed"
    )
    shown.add_argument("--html", type=Path, metavar="FILE", help="write one HTML page instead")


def _report(options: argparse.Namespace) -> int:
    rows = multimodal_of(options)
    if rows is not None:
        _report_rows(options, rows)
        return 0
    ref = dataset_of(options)
    if options.drops:
        write(list_drops(ref))
    elif options.versions:
        write(version_text(ref))
    elif options.html is not None:
        write_page(options.html, report_page(ref))
    else:
        print_report(ref)
    return 0


def _report_rows(options: argparse.Namespace, ref: MultimodalRef) -> None:
    """The same choices for packed rows of text and images."""
    # Loaded here, because it loads what draws pictures.
    from megapack.steps.multimodal import report, report_shown

    if options.drops:
        write(report.reject_lines(ref))
    elif options.versions:
        write(version_text(ref))
    elif options.html is not None:
        write_page(options.html, report_shown.report_page(ref))
    else:
        write(report.multimodal_report(ref).lines())


def print_report(ref: DatasetRef) -> None:
    """Print the report of a dataset version.

    Raises:
        StoreError: the store failed.
    """
    report, details = packing_report(ref), packing_details(ref)
    write(report_text(report, details, first_drops(ref, most=1), origin(ref)))
