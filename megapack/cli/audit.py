"""`megapack audit URI`: check what a dataset promises, before a GPU is spent on it."""

import argparse
from typing import Any

from megapack.cli.commands import FAILED, Lesson, add_command, add_dataset
from megapack.cli.dataset import dataset_of
from megapack.cli.terminal import write
from megapack.steps.audit import audit

LESSON = Lesson(
    sentence="check the laws on a dataset: counts, boundaries, masks, padding, digests",
    more="Prints one line a violation, then how much was looked at.",
    examples=("megapack audit s3://bucket/datasets/chats", "megapack audit store --version 3"),
    failed="a law is broken, or a part is missing or damaged",
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse's own class is private
    """Register the command."""
    add_dataset(add_command(commands, "audit", LESSON, _audit))


def _audit(options: argparse.Namespace) -> int:
    report = audit(dataset_of(options))
    summary = (
        f"audit rows={report.num_rows} checks={report.num_checks} "
        f"violations={len(report.violations)}"
    )
    write([*report.violations, summary])
    return FAILED if report.violations else 0
