"""One process for all that the Hugging Face example is asked: prints its answers as JSON.

Imports torch and transformers; run as `python -m tests.support.hf_example DATASET FOLDER`.
"""

import json
import sys
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import DataLoader

import megapack
from examples.hf_trainer import collate, train
from examples.tiny import tiny_llama
from megapack.errors import ConfigError


def documents_alone(row: dict[str, Any]) -> Any:
    """(ids, labels shifted by hand) of each document of a row."""
    at = 0
    for length in row["seq_lengths"].tolist():
        ids, labels = (row[name][at : at + length] for name in ("input_ids", "labels"))
        yield torch.from_numpy(ids), torch.tensor([*labels[1:].tolist(), -100])
        at += length


def losses(data: Any) -> tuple[float, float]:
    """Mean loss of two flattened rows, and of their documents one at a time."""
    model = tiny_llama().double()
    packed = model(**collate([data[0], data[1]]), use_cache=False).loss
    total, count = 0.0, 0
    for row in (data[0], data[1]):
        for ids, target in documents_alone(row):
            logits = model(input_ids=ids[None]).logits[0]
            total += float(F.cross_entropy(logits, target, ignore_index=-100, reduction="sum"))
            count += int((target >= 0).sum())
    return float(packed), total / count


def main() -> None:
    """Answer everything."""
    uri, folder = sys.argv[1:]
    data = megapack.open(uri).hf()
    loader = DataLoader(data, batch_size=2, num_workers=2, collate_fn=list)
    read = [row["input_ids"].tolist() for batch in loader for row in batch]
    packed, alone = losses(data)
    try:
        late = str(list(loader))
    except ConfigError as error:
        late = str(error)
    history = train(uri, tiny_llama(), folder).state.log_history
    answers = {
        "packed": packed,
        "alone": alone,
        "read": read,
        "late": late,
        "trainer": [entry["loss"] for entry in history if "loss" in entry],
    }
    sys.stdout.write("\nANSWERS " + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
