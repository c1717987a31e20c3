"""Where the documents of a plain row begin, from whatever its columns say; they must agree."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from megapack.layout.pack_layout import IGNORE_INDEX
from megapack.layout.runs import Bool, Int64
from megapack.steps.foreign.faults import Fault, FaultLog

NO_BOUNDARIES = (
    "boundaries, positions and labels that cross documents: the rows have no seq_lengths, "
    "cu_seqlens, position_ids or numbered attention_mask"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Boundaries:
    """Boundaries of one row of L positions.

    Attributes:
        starts: int64 [N], the first is 0.
        padding: bool [L], True at padding.
    """

    starts: Int64
    padding: Bool


def boundaries_of(columns: Mapping[str, Int64], *, where: str, log: FaultLog) -> Boundaries | None:
    """Boundaries of a row; None, with a fault, when they do not add up.

    Args:
        columns: `input_ids` and what else the row has.
        where: file and row.
        log: takes the faults.
    """
    size = int(columns["input_ids"].size)
    padding = np.zeros(size, dtype=np.bool_)
    numbers = columns.get("attention_mask")
    if numbers is not None:
        if not _numbered(numbers, where=where, log=log):
            return None
        padding = numbers == 0
    lengths = _lengths(columns)
    if lengths is not None:
        return _by_lengths(lengths, padding, columns, where=where, log=log)
    if numbers is not None and int(numbers.max(initial=0)) > 1:
        real = np.flatnonzero(~padding)
        changes = np.flatnonzero(np.diff(numbers[real])) + 1
        return Boundaries(starts=real[np.append(0, changes)], padding=padding)
    if "position_ids" in columns:
        return _by_positions(columns["position_ids"], padding, where=where, log=log)
    log.unchecked(NO_BOUNDARIES)
    return Boundaries(starts=np.zeros(1, dtype=np.int64), padding=padding)


def _lengths(columns: Mapping[str, Int64]) -> Int64 | None:
    """Document lengths where the row says them; offsets that do not begin at 0 give a length 0."""
    if "seq_lengths" in columns:
        return columns["seq_lengths"]
    for name in ("cu_seqlens", "cu_seq_lens_q"):
        if name in columns:
            offsets = columns[name]
            if offsets.size < 1 or offsets[0] != 0:
                return np.append(0, np.diff(offsets))
            # Arrays of constant size repeat the last offset.
            rising = int(np.argmax(offsets)) + 1
            constant = bool((offsets[rising:] == offsets[rising - 1]).all())
            return np.diff(offsets[:rising] if constant else offsets)
    return None


def _numbered(numbers: Int64, *, where: str, log: FaultLog) -> bool:
    """Whether a mask is of zeros and ones, or numbers documents from 1 on."""
    real = numbers[numbers != 0]
    if (numbers < 0).any() or (np.diff(real) < 0).any() or (np.diff(real) > 1).any():
        log.add(
            Fault.MASK_VALUE,
            f"{where} attention_mask",
            expected="0 and 1, or 0 at padding and the documents' numbers from 1 on",
            found=sorted(set(numbers.tolist()))[:8],
        )
        return False
    return True


def _by_lengths(
    lengths: Int64, padding: Bool, columns: Mapping[str, Int64], *, where: str, log: FaultLog
) -> Boundaries | None:
    size, total = int(columns["input_ids"].size), int(lengths.sum())
    good = lengths.size > 0 and bool((lengths >= 1).all())
    if not good or total > size or not _is_padding(columns, total):
        log.add(
            Fault.BAD_BOUNDARIES,
            where,
            expected=f"document lengths of at least 1 that add up to {size}",
            found=f"{lengths[:8].tolist()}, which add up to {total}",
        )
        return None
    marked = padding.copy()
    marked[total:] = True
    return Boundaries(starts=np.cumsum(lengths) - lengths, padding=marked)


def _is_padding(columns: Mapping[str, Int64], total: int) -> bool:
    """Whether what stands behind the documents can be padding of a row that was padded later.

    One id over and over is; a single id that is a label is rather a document cut short.
    """
    rest = columns["input_ids"][total:]
    if rest.size != 1 or "labels" not in columns:
        return bool((rest == rest[:1]).all())
    return int(columns["labels"][-1]) == IGNORE_INDEX


def _by_positions(
    positions: Int64, padding: Bool, *, where: str, log: FaultLog
) -> Boundaries | None:
    if positions.size == 0 or positions[0] != 0:
        log.add(
            Fault.BAD_POSITIONS,
            f"{where} position_ids[0]",
            expected=0,
            found=positions[:1].tolist(),
        )
        return None
    nonzero = np.flatnonzero(positions)
    tail = positions.size - (int(nonzero[-1]) + 1 if nonzero.size else 1)
    if tail > 1:
        log.add(
            Fault.BAD_POSITIONS,
            f"{where} position_ids from {positions.size - tail} on",
            expected="padding that counts on, or no padding",
            found=f"{tail} zeros, which trainers read as {tail} documents of one token",
        )
        return None
    return Boundaries(starts=np.flatnonzero(positions == 0), padding=padding)
