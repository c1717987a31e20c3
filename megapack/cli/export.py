"""`megapack export`: a packed dataset, written out for another trainer."""

import argparse
import sys
from typing import Any

from megapack.steps.export import export
from megapack.steps.exports.formats import ExportFormat
from megapack.steps.resolve import resolve_dataset


def add(commands: Any) -> None:  # noqa: ANN401 - argparse keeps the type of sub-parsers private
    """Register the command."""
    parser = commands.add_parser("export", help="write a dataset out for another trainer")
    parser.add_argument("uri", help="dataset folder or s3:// prefix")
    parser.add_argument("out", help="folder or s3:// prefix to write; nothing may stand there")
    parser.add_argument(
        "--to",
        required=True,
        choices=[form.value for form in ExportFormat],
        help="bridge: Megatron-Bridge packed Parquet; packed-jsonl: records that NeMo-RL and "
        "Megatron-LM tokenize; hf: input_ids, labels, position_ids, seq_lengths",
    )
    parser.add_argument("--version", type=int, help="version number (default: the newest)")
    parser.set_defaults(command=_export)


def _export(options: argparse.Namespace) -> int:
    ref = resolve_dataset(options.uri, version=options.version)
    report = export(ref, options.out, ExportFormat(options.to))
    for line in report.lines():
        sys.stdout.write(line + "\n")
    return 0
