"""`megapack export-weights`: a checkpoint, written out as a Hugging Face folder."""

import argparse
from pathlib import Path
from typing import Any

from megapack.cli.commands import Lesson, add_command
from megapack.cli.terminal import write
from megapack.steps.hugging_face.export import export_weights

LESSON = Lesson(
    sentence="write a checkpoint out as a Hugging Face model folder",
    more="One process holds the whole model in host memory. Llama, Qwen2 and Qwen3 shapes.",
    examples=(
        "megapack export-weights s3://bucket/checkpoints/ADDRESS OUT",
        "megapack export-weights RUNS/checkpoints/ADDRESS OUT --like START  "
        "# tokenizer and the rest of config.json from the folder that training started from",
    ),
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse's own class is private
    """Register the command."""
    parser = add_command(commands, "export-weights", LESSON, _export)
    parser.add_argument("checkpoint", help="folder or s3:// prefix of a run's checkpoints")
    parser.add_argument("out", type=Path, help="folder to make; nothing may stand there")
    parser.add_argument("--version", type=int, help="version number (default: the newest)")
    parser.add_argument(
        "--like",
        type=Path,
        metavar="DIR",
        help="model folder of the same shape, for tokenizer files and other settings",
    )


def _export(options: argparse.Namespace) -> int:
    found = export_weights(
        options.checkpoint,
        Path.cwd() / options.out,
        version=options.version,
        like=options.like,
        on_line=lambda rank, line: write([f"[rank {rank}] {line}"]),
    )
    write([f"weights uri={found.uri} digest={found.digest}"])
    return 0
