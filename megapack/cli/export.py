"""`megapack export`: a packed dataset, written out for another trainer."""

import argparse
from typing import Any

from megapack.cli.commands import Lesson, add_command, add_dataset
from megapack.cli.dataset import dataset_of
from megapack.cli.terminal import write
from megapack.steps.export import export
from megapack.steps.exports.formats import ExportFormat

LESSON = Lesson(
    sentence="write a dataset out for another trainer",
    more="bridge: Megatron-Bridge packed Parquet. packed-jsonl: records that NeMo-RL and "
    "Megatron-LM tokenize themselves. hf: Parquet with input_ids, labels, position_ids, "
    "seq_lengths.",
    examples=("megapack export s3://bucket/datasets/chats OUT --to bridge",),
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse's own class is private
    """Register the command."""
    parser = add_command(commands, "export", LESSON, _export)
    add_dataset(parser)
    parser.add_argument("out", help="folder or s3:// prefix to write; nothing may stand there")
    parser.add_argument(
        "--to",
        required=True,
        choices=[form.value for form in ExportFormat],
        help="what the other trainer reads",
    )


def _export(options: argparse.Namespace) -> int:
    report = export(dataset_of(options), options.out, ExportFormat(options.to))
    write(report.lines())
    return 0
