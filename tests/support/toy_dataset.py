"""Packed datasets of toy chats in each kind of format, for exports and audits of other tools' data.

`chatml`: a marked template on TW (`<a>` opens an answer, `<eot>` ends it and is learnt).
`nano`: Megatron's nemotron-nano-v2 on a byte tokenizer.
"""

import json
from pathlib import Path

import numpy as np

from megapack.records.refs import DatasetRef
from tests.support.prepare_jobs import prepare_job
from tests.support.prepared import prepare
from tests.support.toy_tokenizers import (
    MARKED_TEMPLATE,
    bytes_tokenizer,
    save_tokenizer,
    words_tokenizer,
)

WORDS = " ".join(f"w{i}" for i in range(50))
NEMOTRON = ("<unk>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<SPECIAL_233>")


def chat_lines(count: int, *, seed: int = 0, system: bool = True) -> list[str]:
    """Chats of one to three exchanges, as JSON lines."""
    draw = np.random.default_rng(seed)

    def words(low: int, high: int) -> str:
        return " ".join(f"w{i}" for i in draw.integers(0, 50, draw.integers(low, high)))

    lines = []
    for _ in range(count):
        messages = [{"role": "system", "content": words(1, 4)}] if system else []
        for _ in range(int(draw.integers(1, 4))):
            messages.append({"role": "user", "content": words(1, 6)})
            messages.append({"role": "assistant", "content": words(1, 9)})
        lines.append(json.dumps({"messages": messages}))
    return lines


def chatml_tokenizer(folder: Path, **special: str) -> str:
    """TW with a marked template; `<eot>` is the end token unless told otherwise."""
    return save_tokenizer(
        words_tokenizer(WORDS),
        folder / "tokenizer",
        template=MARKED_TEMPLATE,
        **({"eos_token": "<eot>", "pad_token": "<pad>"} | special),
    )


def nemotron_tokenizer(folder: Path) -> str:
    """A byte tokenizer with the control tokens of the Megatron formats."""
    return save_tokenizer(
        bytes_tokenizer(specials=NEMOTRON),
        folder / "tokenizer",
        eos_token="<SPECIAL_12>",
    )


def chatml_dataset(folder: Path, *, chats: int = 40, special=None, **changes) -> DatasetRef:
    """A dataset of the marked template."""
    source = folder / "chats.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    source.write_text("\n".join(chat_lines(chats)) + "\n", encoding="utf-8")
    job = prepare_job(folder, source, **({"validation_fraction": 0.2} | changes))
    return prepare(
        job.model_copy(update={"tokenizer": chatml_tokenizer(folder, **(special or {}))})
    )


def nemotron_dataset(folder: Path, *, form: str, lines: list[str], **changes) -> DatasetRef:
    """A dataset of a Megatron format, in rows of 512 bytes."""
    source = folder / "chats.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {
        "tokenize": {
            "format": form,
            "long_documents": "drop",
            "loss_on": "all" if form == "identity" else "assistant",
        },
        "pack": {"row_length": 512},
        "validation_fraction": 0.0,
    }
    job = prepare_job(folder, source, **(settings | changes))
    return prepare(job.model_copy(update={"tokenizer": nemotron_tokenizer(folder)}))
