"""Rows of Megatron-Bridge: packed Parquet, or its older `.npy` form.

`loss_mask` is target-aligned: value t decides on id t + 1. The reader cuts at `seq_start_id` and
never looks at the value of a document's last id, so that one is not looked at here either.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from megapack.layout.runs import Int64
from megapack.steps.foreign.faults import Fault, FaultLog
from megapack.steps.foreign.rows import ForeignRow, same_length, whole_numbers, zeros_and_ones

COLUMNS = frozenset({"input_ids", "loss_mask", "seq_start_id"})


def bridge_row(record: Mapping[str, Any], *, where: str, log: FaultLog) -> ForeignRow | None:
    """A record as a row; None, with a fault, when it cannot be read as one."""
    columns = {
        name: whole_numbers(record.get(name), name=name, where=where, log=log)
        for name in ("input_ids", "loss_mask", "seq_start_id")
    }
    tokens, mask, starts = columns.values()
    if tokens is None or mask is None or starts is None:
        return None
    if not same_length({"input_ids": tokens, "loss_mask": mask}, where=where, log=log):
        return None
    if not _boundaries(starts, tokens.size, where=where, log=log):
        return None
    if not zeros_and_ones(mask, name="loss_mask", where=where, log=log):
        return None
    learnt = np.append(False, mask[:-1] == 1)
    learnt[starts] = False
    return ForeignRow(
        where=where,
        tokens=tokens,
        learnt=learnt,
        starts=starts,
        padding=np.zeros(tokens.size, dtype=np.bool_),
    )


def _boundaries(starts: Int64, size: int, *, where: str, log: FaultLog) -> bool:
    good = starts.size > 0 and starts[0] == 0 and starts[-1] < size
    if not good or (np.diff(starts) <= 0).any():
        log.add(
            Fault.BAD_BOUNDARIES,
            f"{where} seq_start_id",
            expected=f"starts that rise from 0 and stay below {size}",
            found=starts[:8].tolist(),
        )
        return False
    return True
