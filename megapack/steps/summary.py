"""What a run made, in the lines a person wants at its end."""

import json
from collections.abc import Mapping
from typing import Any

from megapack.records.refs import CheckpointRef, DatasetRef, PayloadRef
from megapack.steps.report import packing_report
from megapack.steps.tables import committed, parts
from megapack.store.location import open_location
from megapack.store.manifest import PartKind, Split

METRICS_FILE = "metrics.jsonl"
"""Name, inside a checkpoint, of the metrics of the run up to it."""


def summary_lines(
    dataset: DatasetRef, checkpoint: CheckpointRef, payload: PayloadRef | None
) -> list[str]:
    """Documents, rows, evaluation loss before and after, addresses, and what was reused.

    Raises:
        StoreError: a version cannot be read.
    """
    lines = packing_report(dataset).lines()
    lines.append(f"evaluation documents_shared_with_training={shared_documents(dataset)}")
    evaluations = [
        one
        for one in metrics_of(checkpoint)
        if one["kind"] == "evaluation" and one["loss"] is not None
    ]
    if evaluations:
        first, last = evaluations[0], evaluations[-1]
        lines.append(
            f"evaluation loss_before={first['loss']:.4f} loss_after={last['loss']:.4f} "
            f"steps={last['step']} target_tokens={last['num_target_tokens']}"
        )
    lines.append(
        f"checkpoint step={checkpoint.step} uri={checkpoint.uri} version={checkpoint.version}"
    )
    if payload is not None:
        lines.append(
            f"payload documents={payload.num_documents} positions={payload.num_positions} "
            f"uri={payload.uri} version={payload.version}"
        )
    made = {"dataset": dataset, "checkpoint": checkpoint, "payload": payload}
    reused = [name for name, ref in made.items() if ref is not None and ref.reused]
    lines.append(f"reused {' '.join(reused) or 'nothing'}")
    return lines


def metrics_of(checkpoint: CheckpointRef) -> list[Mapping[str, Any]]:
    """Metric objects of a training run, up to a checkpoint.

    Raises:
        StoreError: the checkpoint cannot be read.
    """
    version = committed(checkpoint)
    location = open_location(version.uri)
    for part in version.manifest.parts_of(PartKind.FILE):
        if part.name == METRICS_FILE:
            return [json.loads(line) for line in location.get(part.key).splitlines()]
    return []


def shared_documents(dataset: DatasetRef) -> int:
    """Documents of the validation split that the training split holds too: 0 when all is well.

    Raises:
        StoreError: the dataset cannot be read.
    """
    sides: dict[Split, set[str]] = {Split.TRAIN: set(), Split.VALIDATION: set()}
    for part, frame in parts(committed(dataset), PartKind.ROWS):
        sides[part.split].update(frame["document_ids"].explode(empty_as_null=False))
    return len(sides[Split.TRAIN] & sides[Split.VALIDATION])
