"""Rows of Hugging Face trainers: `input_ids` with labels or masks, and boundaries of some kind.

Supervision is `labels` (the ids themselves, -100 elsewhere; the model shifts them) or TRL's
`completion_mask` and `assistant_masks`; a trainer that finds none of them learns every token.
Boundaries are `seq_lengths` (TRL), `cu_seqlens`, an `attention_mask` that numbers documents from 1
(LLaMA-Factory), or the places where `position_ids` restart.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from megapack.layout.pack_layout import IGNORE_INDEX
from megapack.layout.runs import Bool, Int64
from megapack.steps.foreign.boundaries import Boundaries, boundaries_of
from megapack.steps.foreign.faults import Fault, FaultLog
from megapack.steps.foreign.rows import ForeignRow, same_length, whole_numbers, zeros_and_ones

_MASKS = ("completion_mask", "assistant_masks")
_BY_POSITION = ("input_ids", "labels", *_MASKS, "attention_mask", "position_ids")
_LENGTHS = ("seq_lengths", "cu_seqlens", "cu_seq_lens_q")


def plain_row_of(record: Mapping[str, Any], *, where: str, log: FaultLog) -> ForeignRow | None:
    """A record as a row; None, with a fault, when it cannot be read as one."""
    columns: dict[str, Int64] = {}
    for name in (*_BY_POSITION, *_LENGTHS):
        if record.get(name) is not None:
            column = whole_numbers(record[name], name=name, where=where, log=log)
            if column is None:
                return None
            columns[name] = column
    if "input_ids" not in columns or not columns["input_ids"].size:
        found = "no token" if "input_ids" in columns else "no input_ids"
        log.add(Fault.UNREADABLE, where, expected="input_ids of at least one token", found=found)
        return None
    by_position = {name: columns[name] for name in _BY_POSITION if name in columns}
    if not same_length(by_position, where=where, log=log):
        return None
    boundaries = boundaries_of(columns, where=where, log=log)
    if boundaries is None:
        return None
    learnt = _learnt(columns, boundaries, where=where, log=log)
    if learnt is None:
        return None
    return ForeignRow(
        where=where,
        tokens=columns["input_ids"],
        learnt=learnt,
        starts=boundaries.starts,
        padding=boundaries.padding,
        positions=columns.get("position_ids"),
    )


def _learnt(
    columns: Mapping[str, Int64], boundaries: Boundaries, *, where: str, log: FaultLog
) -> Bool | None:
    """Token-aligned supervision. Masks lose a document's first token in TRL's own collator."""
    if "labels" in columns:
        return _by_labels(columns["input_ids"], columns["labels"], where=where, log=log)
    learnt = np.ones(columns["input_ids"].size, dtype=np.bool_)
    for name in _MASKS:
        if name in columns:
            if not zeros_and_ones(columns[name], name=name, where=where, log=log):
                return None
            learnt &= columns[name] == 1
    learnt[boundaries.starts] = False
    return learnt


def _by_labels(ids: Int64, labels: Int64, *, where: str, log: FaultLog) -> Bool | None:
    learnt: Bool = labels != IGNORE_INDEX
    wrong = np.flatnonzero(learnt & (labels != ids))
    if not wrong.size:
        return learnt
    at = int(wrong[0])
    before_last = learnt[:-1]
    if bool(np.all(labels[:-1][before_last] == ids[1:][before_last])):
        log.add(
            Fault.SHIFTED_LABELS,
            where,
            expected="labels[t] equal to input_ids[t], because the model shifts them itself",
            found=f"labels[t] equal to input_ids[t + 1], from position {at} on: shifted twice",
        )
    else:
        log.add(
            Fault.LABEL_VALUE,
            f"{where} labels[{at}]",
            expected=f"{int(ids[at])}, the id at its position, or {IGNORE_INDEX}",
            found=int(labels[at]),
        )
    return None
