"""`megapack audit URI`: check what a dataset promises, before a GPU is spent on it.

Datasets of megapack are checked against their manifest; packed data of other tools by what its
files say, and by the tokenizer where one is named.
"""

import argparse
from typing import Any

from megapack.cli import foreign
from megapack.cli.commands import FAILED, Lesson, add_command, add_dataset
from megapack.cli.dataset import dataset_of, multimodal_of
from megapack.cli.progress import bars_only
from megapack.cli.terminal import write
from megapack.records.refs import MultimodalRef
from megapack.steps.audit import AuditReport
from megapack.steps.foreign.audit import is_dataset
from megapack.steps.prepare import ROW_UNITS, Watcher, audited, rows_done
from megapack.store.dataset_address import dataset_address

LESSON = Lesson(
    sentence="check the laws on a dataset, or look for faults in packed data of other tools",
    more="Of a dataset: counts, boundaries, masks, padding, digests; one line a violation, then "
    "how much was looked at. Of others' data: lost end tokens, shifted masks, labels that cross "
    "documents, padding that trains.",
    examples=(
        "megapack audit s3://bucket/datasets/chats",
        "megapack audit store --version 3",
        "megapack audit packed.parquet --tokenizer DIR   # made by another tool",
    ),
    failed="a law is broken, or a part is missing or damaged",
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse's own class is private
    """Register the command."""
    parser = add_command(commands, "audit", LESSON, _audit)
    add_dataset(parser)
    foreign.add_options(parser)


def _audit(options: argparse.Namespace) -> int:
    if not is_dataset(dataset_address(options.uri)):
        found = foreign.audit_of(options)
        write(found.lines())
        return FAILED if found.counts else 0
    rows = multimodal_of(options)
    if rows is not None:
        report = audited_rows(rows, watcher=bars_only())
    else:
        report = audited(dataset_of(options), watcher=bars_only())
    summary = (
        f"audit rows={report.num_rows} checks={report.num_checks} "
        f"violations={len(report.violations)}"
    )
    write([*report.violations, summary])
    return FAILED if report.violations else 0


def audited_rows(ref: MultimodalRef, *, watcher: Watcher) -> AuditReport:
    """Audit packed rows of text and images; nothing is raised for a violation."""
    # Loaded here, because it loads what decodes images.
    from megapack.steps.multimodal.audit import audit_multimodal

    with watcher.stage("audit", ROW_UNITS) as done:
        report = audit_multimodal(ref, on_rows=rows_done(done))
        done(ROW_UNITS, f"{report.num_checks:,} checks, {len(report.violations):,} violations")
    return report
