"""The part of `megapack audit` that looks at packed data of other tools."""

import argparse

from megapack.conversation.config import LossOn, PromptFormat
from megapack.steps.foreign.audit import ForeignAudit, ForeignReport, audit_foreign


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `megapack audit` that say what other tools' data was made with."""
    group = parser.add_argument_group(
        "packed data of other tools",
        "Megatron-Bridge Parquet or .npy, .jsonl.packed, and Hugging Face rows (Parquet, Arrow, "
        "JSON lines). More is checked with the tokenizer than without.",
    )
    group.add_argument("--tokenizer", help="tokenizer folder, local or s3://")
    group.add_argument(
        "--format",
        choices=[form.value for form in PromptFormat],
        help="prompt format (default: the tokenizer's chat template)",
    )
    group.add_argument(
        "--loss-on",
        choices=[one.value for one in LossOn],
        default=LossOn.ASSISTANT.value,
        help="what is meant to be trained (default: %(default)s)",
    )
    group.add_argument(
        "--row-length", type=int, help="positions that the loader gives a row of conversations"
    )


def audit_of(options: argparse.Namespace) -> ForeignReport:
    """Audit what the options name.

    Raises:
        ConfigError: nothing that is packed data is there, or the tokenizer cannot be used.
        DataError: a file as a whole cannot be read.
        StoreError: the store failed.
    """
    return audit_foreign(
        ForeignAudit(
            uri=options.uri,
            tokenizer=options.tokenizer,
            format=None if options.format is None else PromptFormat(options.format),
            loss_on=LossOn(options.loss_on),
            row_length=options.row_length,
        )
    )
