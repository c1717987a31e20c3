"""`megapack inspect URI`: see what will be trained, decoded, with the trained tokens marked."""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from megapack.cli.commands import Lesson, add_command, add_dataset, natural, positive
from megapack.cli.dataset import dataset_of, multimodal_of
from megapack.cli.drops import show_drops
from megapack.cli.terminal import in_colour, write, write_page
from megapack.errors import ConfigError
from megapack.jobs.pipeline import PAYLOADS
from megapack.steps.inspect import select
from megapack.steps.inspect.html import page_of
from megapack.steps.inspect.payload import payload_lines
from megapack.steps.inspect.plain import LEGENDS, Style, lines_of
from megapack.steps.inspect.record import record_at
from megapack.steps.inspect.shown import Group
from megapack.steps.inspect.teacher import teacher_fact, with_teacher
from megapack.steps.inspect.tokenizer import find_tokenizer
from megapack.steps.report import packing_report
from megapack.store.committed import Committed
from megapack.store.dataset_address import read_named
from megapack.store.manifest import PartKind, Split
from megapack.store.only_one import only_one
from megapack.store.payload_reader import open_payloads
from megapack.store.reader import open_dataset

_SAMPLE = 3
_SAMPLE_HTML = 50
_MOST, _MOST_HTML = 1000, 20_000
LESSON = Lesson(
    sentence="show rows and documents decoded, with the trained tokens marked",
    more=(
        "Marked are the tokens that the labels ask the model to say: check that answers are\n"
        "marked to their end token, and that nothing else is. Also reads a table of the tokenize\n"
        "step, says what a teacher payload holds, and shows rows of text and images (pictures of\n"
        "them with --html)."
    ),
    examples=(
        "megapack inspect s3://bucket/datasets/chats         # three documents, drawn at random",
        "megapack inspect OUT --rows 0,5                     # two whole rows",
        "megapack inspect OUT --document 3f2a9c              # a document by its first digits",
        "megapack inspect OUT --at chats.jsonl:12           # what became of a record",
        "megapack inspect OUT --source code                 # three documents of one source",
        "megapack inspect OUT --sample 100 --html look.html  # to open in a browser",
        "megapack inspect OUT --teacher PAYLOAD              # what the teacher expected instead",
        "megapack inspect OUT --drops                        # what was left out, with its text",
    ),
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse's own class is private
    """Register the command."""
    parser = add_command(commands, "inspect", LESSON, _inspect)
    add_dataset(parser)
    parser.add_argument(
        "--split",
        choices=[Split.TRAIN.value, Split.VALIDATION.value],
        default=Split.TRAIN.value,
        help="side of the split that rows and samples come from (default: train)",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--rows", type=_numbers, metavar="0,5", help="whole rows, by number inside the split"
    )
    chosen.add_argument("--document", metavar="ID", help="documents whose id begins like this")
    chosen.add_argument(
        "--sample",
        type=positive,
        metavar="N",
        help=f"N documents at random (default: {_SAMPLE}; {_SAMPLE_HTML} with --html)",
    )
    chosen.add_argument(
        "--drops", action="store_true", help="records that were left out: why, and their text"
    )
    chosen.add_argument(
        "--at",
        metavar="FILE:LINE",
        help="what became of a record: the last parts of its file's address, lines from 1",
    )
    parser.add_argument(
        "--teacher",
        metavar="PAYLOAD",
        help="token by token, with the likeliest tokens of a teacher's top-k payload",
    )
    parser.add_argument(
        "--teacher-version", type=int, metavar="N", help="its version (default: the newest)"
    )
    parser.add_argument("--source", metavar="NAME", help="sample documents of this source only")
    parser.add_argument("--seed", type=natural, default=0, help="draws another sample (default: 0)")
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="tokenizer to decode with, when the recorded one is gone"
    )
    parser.add_argument(
        "--max-tokens",
        type=positive,
        metavar="N",
        help=f"tokens shown of each document (default: {_MOST}, those around what is trained; "
        f"{_MOST_HTML} with --html)",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one HTML page instead")


def _inspect(options: argparse.Namespace) -> int:
    if options.source is not None and (
        options.drops or options.document or options.at or options.rows
    ):
        raise ConfigError("inspect --source goes with --sample: leave the other choice out.")
    if options.drops and multimodal_of(options) is None:
        if options.html is not None:
            raise ConfigError(
                "inspect --drops prints text. Use megapack report --html for a page with examples."
            )
        write(show_drops(dataset_of(options)))
        return 0
    with contextlib.ExitStack() as stack:
        version = read_named(options.uri, options.version)
        if version.manifest.payload is not None:
            _refuse_choices(options, version)
            write(payload_lines(version, version.manifest.payload))
            return 0
        if version.manifest.multimodal is not None:
            return _inspect_rows(options, version)
        wording = find_tokenizer(version.manifest, override=options.tokenizer)
        groups, facts = _chosen(options, version, stack)
        if options.teacher is not None:
            payloads = open_payloads(
                only_one(options.teacher, PAYLOADS, "payload"), options.teacher_version
            )
            groups = with_teacher(groups, payloads)
            facts.append(teacher_fact(payloads))
        facts += [f"!{wording.note}" if wording.doubtful else wording.note]
        most = options.max_tokens or (_MOST if options.html is None else _MOST_HTML)
        if options.html is None:
            style = Style.COLOUR if in_colour(sys.stdout) else Style.PLAIN
            write([*(fact.removeprefix("!") for fact in facts), LEGENDS[style], ""])
            write(lines_of(groups, wording.texts, style=style, most=most))
        else:
            title = f"{version.uri} version {version.version}"
            page = page_of(groups, wording.texts, title=title, facts=facts, most=most)
            write_page(options.html, page)
    return 0


def _inspect_rows(options: argparse.Namespace, version: Committed) -> int:
    """Rows of text and images: as text, or with pictures on a page."""
    # Loaded here, because it loads what draws pictures.
    from megapack.steps.multimodal.report import reject_lines
    from megapack.steps.multimodal.report_shown import report_page
    from megapack.steps.multimodal.row_text import row_lines

    if any((options.document, options.at, options.source, options.teacher, options.sample)):
        raise ConfigError(
            f"{version.uri}: expected --rows, --drops or --html for rows of text and images, found "
            "a choice of documents. Leave it out."
        )
    ref = version.multimodal_ref()
    if options.drops:
        write(reject_lines(ref))
    elif options.html is not None:
        write_page(options.html, report_page(ref, options.rows))
    else:
        write(row_lines(ref, options.rows))
    return 0


def _chosen(
    options: argparse.Namespace, version: Committed, stack: contextlib.ExitStack
) -> tuple[Iterator[Group], list[str]]:
    """The documents asked for, and what to say about the version first."""
    count = options.sample or (_SAMPLE if options.html is None else _SAMPLE_HTML)
    if version.manifest.packed is None:
        _refuse_choices(options, version)
        parts = version.manifest.parts_of(PartKind.DOCUMENTS)
        total = sum(part.num_records for part in parts)
        facts = [f"{version.manifest.kind} {version.uri} version {version.version}: {total:,}"]
        return select.table(version, count=count, seed=options.seed), facts
    report = packing_report(version.dataset_ref())
    dataset = stack.enter_context(open_dataset(version.uri, version.version))
    split = Split(options.split)
    told: list[str] = []
    if options.at is not None:
        told, groups = record_at(dataset, options.at)
    elif options.rows is not None:
        groups = select.rows(dataset, split, options.rows)
    elif options.document is not None:
        groups = select.by_id(dataset, options.document)
    else:
        groups = select.sample(
            dataset, split, count=count, seed=options.seed, source=options.source
        )
    info = version.manifest.packed_info()
    facts = report.headline()
    facts.append(
        f"format {info.format}; slots in multiples of {info.segment_granularity}, rows of "
        f"{info.row_granularity}; pad id {info.pad_id}"
    )
    return select.placed(groups, version), [*facts, *told]


def _refuse_choices(options: argparse.Namespace, version: Committed) -> None:
    """Refuse what only packed rows serve."""
    chosen = (options.rows, options.document, options.at, options.source, options.teacher)
    if any(chosen):
        raise ConfigError(
            f"{version.uri}: expected packed rows for --rows, --document, --at, --source and "
            f"--teacher, found a version of kind {version.manifest.kind!r}. Leave them out, or "
            "name a dataset."
        )


def _numbers(text: str) -> Sequence[int]:
    return [int(one) for one in text.split(",")]
