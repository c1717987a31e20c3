"""Preparation jobs over small source files."""

import json
from pathlib import Path

from megapack.jobs.prepare import PrepareJob
from tests.support.toy_tokenizers import MARKED_TEMPLATE, save_tokenizer, words_tokenizer

WORDS = " ".join(f"w{i}" for i in range(50))


def line(*turns):
    """One JSON line of a conversation from ("user", "text") pairs."""
    return json.dumps({"messages": [{"role": role, "content": text} for role, text in turns]})


def plain_line(number):
    """One JSON line of a short conversation."""
    return line(("user", f"w{number}"), ("assistant", f"w{number + 1} w{number + 2}"))


def prepare_job(folder, *sources, **changes):
    """A job on TW over sources, each a uri or a dictionary."""
    folder = Path(folder)
    tokenizer = save_tokenizer(
        words_tokenizer(WORDS), folder / "tokenizer", template=MARKED_TEMPLATE
    )
    settings = {
        "sources": [one if isinstance(one, dict) else {"uri": str(one)} for one in sources],
        "tokenizer": tokenizer,
        "tokenize": {"long_documents": "drop"},
        "pack": {"row_length": 64},
        "store": str(folder / "store"),
    }
    return PrepareJob.model_validate(settings | changes)
