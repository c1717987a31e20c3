"""Packed data as other tools keep it, with faults to plant."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

Record = dict[str, list[int]]


def read_rows(folder: Path, *, split: str = "train") -> list[Record]:
    """Records of an export."""
    return list(pl.read_parquet(folder / f"{split}-*.parquet").iter_rows(named=True))


def write_rows(path: Path, rows: list[Record]) -> str:
    """Records as a file, in the form that its suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, np.array(rows, dtype=object), allow_pickle=True)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".arrow":
        pl.DataFrame(rows).write_ipc_stream(path)
    else:
        pl.DataFrame(rows).write_parquet(path)
    return str(path)


def planted(rows: list[Record], number: int, change: Callable[[Record], object]) -> list[Record]:
    """The records with one of them changed in place by a function."""
    changed = copy.deepcopy(rows)
    change(changed[number])
    return changed


def answers(mask: list[int]) -> list[tuple[int, int]]:
    """Start and end of every stretch of ones."""
    edges = np.flatnonzero(np.diff([0, *[int(bool(one)) for one in mask], 0]))
    return list(zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True))
